"""Talks to the disk: writes GGUF files: small ones, whole or in parts, and a Qwen3 or a BERT from
its MLX folder."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ALIGNMENT = 32
F32, F16 = 0, 1
CONTROL, USER, NORMAL = 3, 4, 1
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
"""mlx-lm's names of a layer's tensors, and llama.cpp's."""
BERT_NAMES = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k",
    "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    "word_embeddings": "token_embd", "position_embeddings": "position_embd",
    "token_type_embeddings": "token_types", "LayerNorm": "token_embd_norm",
}  # fmt: skip
"""A BERT's names of tensors, and llama.cpp's."""
HEAD_NAMES = {"pooler.dense": "cls", "classifier": "cls.output"}
"""The names of the tensors with which a BERT ranks, and llama.cpp's."""
RANK = 4
"""llama.cpp's number of the pooling of a reranker."""
JUDGE = "query: {query} document: {document} relevant:"
"""The prompt of a reranker that answers yes or no."""
SMALL: dict[str, Any] = {
    "general.architecture": "llama", "general.file_type": 15, "llama.block_count": 2,
    "llama.context_length": 2048, "llama.embedding_length": 64, "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2, "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.chat_template": "{{ tools }}<think>",
}  # fmt: skip
"""The metadata of a small model that nobody runs."""

Tensors = Mapping[str, tuple[int, Sequence[int], bytes]]
"""By name: the type's number, the shape (the row's length first), and the data."""


class Number16(int):
    """An unsigned number of 16 bits."""


class Number32(int):
    """A signed number of 32 bits."""


class Signed(tuple[int, ...]):
    """An array of signed 32-bit numbers."""


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> tuple[int, bytes]:
    """Return the number of a value's type, and the value."""
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case Number16():
            return 2, struct.pack("<H", value)
        case Number32():
            return 5, struct.pack("<i", value)
        case int():
            return (4, struct.pack("<I", value)) if value >= 0 else (11, struct.pack("<q", value))
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, text(value)
        case Signed():
            return 9, struct.pack("<IQ", 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
        case _:
            items = [typed(item) for item in value]
            kind = items[0][0] if items else 4
            head = struct.pack("<IQ", kind, len(items))
            return 9, head + b"".join(data for _, data in items)


def gguf(metadata: Mapping[str, Any], tensors: Tensors, *, version: int = 3) -> bytes:
    """Return a whole file."""
    head = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        kind, data = typed(value)
        head += [text(key), struct.pack("<I", kind), data]
    at, data = 0, list[bytes]()
    for name, (kind, shape, content) in tensors.items():
        sides = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += [text(name), sides, struct.pack("<IQ", kind, at)]
        padded = content + bytes(-len(content) % ALIGNMENT)
        data.append(padded)
        at += len(padded)
    header = b"".join(head)
    return header + bytes(-len(header) % ALIGNMENT) + b"".join(data)


def parts(
    metadata: Mapping[str, Any],
    tensors: Tensors,
    count: int,
    stem: str = "m",
    changed: Mapping[str, Any] | None = None,
) -> dict[str, bytes]:
    """Return the parts of a file by name, as `llama-gguf-split` writes them. `changed` metadata is
    that of all parts."""
    names = list(tensors)
    files: dict[str, bytes] = {}
    for number in range(count):
        own = {name: tensors[name] for name in names[number::count]}
        split = {
            "split.no": Number16(number),
            "split.count": Number16(count),
            "split.tensors.count": Number32(len(names)),
        }
        split.update(changed or {})
        name = f"{stem}-{number + 1:05}-of-{count:05}.gguf"
        files[name] = gguf({**(metadata if number == 0 else {}), **split}, own)
    return files


def small_tensors(rows: int = 3) -> Tensors:
    return {
        "token_embd.weight": (F16, (64, rows), bytes(2 * 64 * rows)),
        "output_norm.weight": (F32, (64,), bytes(4 * 64)),
        "output.weight": (F16, (64, rows), bytes(2 * 64 * rows)),
    }


def small(**changed: Any) -> bytes:
    """Return a small file; `changed` metadata has dots in place of `__`; None leaves a key out."""
    changes = {key.replace("__", "."): value for key, value in changed.items()}
    metadata = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    return gguf(metadata, {"token_embd.weight": (F16, (64, 3), bytes(2 * 64 * 3))})


def embedder(**changed: Any) -> bytes:
    """Return a small file that is an embedding model by its header; `changed` as in `small`."""
    sizes = {"bert__block_count": 2, "bert__context_length": 64, "bert__embedding_length": 64}
    return small(general__architecture="bert", **{"bert__pooling_type": 2, **sizes, **changed})


def from_qwen3(
    folder: Path,
    target: Path,
    *,
    pre: str = "qwen2",
    count: int = 1,
    head: np.ndarray[Any, Any] | None = None,
) -> Path:
    """Write the Qwen3 of an MLX folder with unquantised weights as a GGUF file in float32, or as
    `count` parts of one, named after the file. With a `head`, (2, hidden), the model is a reranker
    that answers yes or no."""
    config = json.loads((folder / "config.json").read_text())
    tensors: dict[str, tuple[int, Sequence[int], bytes]] = {}
    for name, array in weights_in(folder / "model.safetensors").items():
        shape = tuple(reversed(array.shape))
        tensors[gguf_name(name)] = (F32, shape, array.astype("<f4").tobytes())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    metadata = {
        "general.architecture": "qwen3", "general.name": "tiny", "general.file_type": 0,
        "qwen3.block_count": config["num_hidden_layers"],
        "qwen3.context_length": config["max_position_embeddings"],
        "qwen3.embedding_length": config["hidden_size"],
        "qwen3.feed_forward_length": config["intermediate_size"],
        "qwen3.attention.head_count": config["num_attention_heads"],
        "qwen3.attention.head_count_kv": config["num_key_value_heads"],
        "qwen3.attention.key_length": config["head_dim"],
        "qwen3.attention.value_length": config["head_dim"],
        "qwen3.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "qwen3.rope.freq_base": float(config["rope_theta"]),
        **vocabulary_of(tokenizer, pre),
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.padding_token_id": config["pad_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(),
    }  # fmt: skip
    if head is not None:
        tensors["cls.output.weight"] = (F32, (head.shape[1], 2), head.astype("<f4").tobytes())
        metadata |= {"qwen3.pooling_type": RANK, "tokenizer.chat_template.rerank": JUDGE}
        metadata["qwen3.classifier.output_labels"] = ["yes", "no"]
    target.parent.mkdir(parents=True, exist_ok=True)
    if count > 1:
        for name, data in parts(metadata, tensors, count, target.stem).items():
            (target.parent / name).write_bytes(data)
        return target.parent
    target.write_bytes(gguf(metadata, tensors))
    return target


def vocabulary_of(tokenizer: dict[str, Any], pre: str) -> dict[str, Any]:
    """Return the metadata of a byte-level BPE tokenizer."""
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    names = {index: name for name, index in model["vocab"].items()}
    kinds = dict.fromkeys(names, NORMAL)
    for token in added:
        names[token["id"]] = token["content"]
        kinds[token["id"]] = CONTROL if token["special"] else USER
    order = sorted(names)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [names[index] for index in order],
        "tokenizer.ggml.token_type": Signed(kinds[index] for index in order),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
    }


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of one of mlx-lm's tensors of a Qwen3."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in whole:
        return whole[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def from_bert(folder: Path, target: Path, pooling: int = 1, **changed: Any) -> Path:
    """Write the BERT of a folder as a GGUF file in float32. `pooling`: llama.cpp's number."""
    config = json.loads((folder / "config.json").read_text())
    tensors: dict[str, tuple[int, Sequence[int], bytes]] = {}
    for name, array in weights_in(folder / "model.safetensors").items():
        if array.dtype != np.float32:
            continue
        if own := _bert_name(name.removeprefix("bert."), ranks=pooling == RANK):
            tensors[own] = (F32, tuple(reversed(array.shape)), array.tobytes())
    metadata = {
        "general.architecture": "bert", "general.file_type": 0,
        "bert.block_count": config["num_hidden_layers"],
        "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": float(config["layer_norm_eps"]),
        "bert.attention.causal": False,
        "bert.pooling_type": pooling,
        **_word_pieces(json.loads((folder / "tokenizer.json").read_text())),
        **changed,
    }  # fmt: skip
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gguf(metadata, tensors))
    return target


def _word_pieces(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a WordPiece tokenizer. llama.cpp marks the beginnings of words."""
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    pieces = {
        index: name if index in special else name[2:] if name.startswith("##") else f"\u2581{name}"
        for name, index in vocabulary.items()
    }
    order = sorted(pieces)
    names = {"bos": "CLS", "cls": "CLS", "seperator": "SEP", "unknown": "UNK", "padding": "PAD"}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [pieces[index] for index in order],
        "tokenizer.ggml.token_type": Signed(CONTROL if i in special else NORMAL for i in order),
        "tokenizer.ggml.token_type_count": 2,
        **{
            f"tokenizer.ggml.{name}_token_id": vocabulary[f"[{token}]"]
            for name, token in names.items()
        },
    }


def _bert_name(name: str, *, ranks: bool) -> str:
    """Return llama.cpp's name of a BERT's tensor; "" if its file lacks the tensor."""
    stem, _, end = name.rpartition(".")
    if stem in HEAD_NAMES:
        return f"{HEAD_NAMES[stem]}.{end}" if ranks else ""
    if stem.startswith("embeddings."):
        return f"{BERT_NAMES[stem.removeprefix('embeddings.')]}.{end}"
    layer, _, rest = stem.removeprefix("encoder.layer.").partition(".")
    return f"blk.{layer}.{BERT_NAMES[rest]}.{end}"


def weights_in(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of a safetensors file in float16 or float32."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            kind = {"F16": "<f2", "F32": "<f4", "I64": "<i8"}[entry["dtype"]]
            part = data[8 + length + first : 8 + length + last]
            arrays[name] = np.frombuffer(part, kind).reshape(entry["shape"])
    return arrays
