"""Facts about the model of a GGUF file, from its header: architecture, sizes, texts, and whether it
is a language model, an embedding model or a reranker.

Pure. ggml's `docs/gguf.md` lists the keys; most begin with the architecture's name. The size of the
KV cache is that of llama-server's default: 16-bit keys and values of the whole context in each
layer. A layer with a sliding window or a state needs less.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bus.models.gguf.header import BadGguf, GgufHeader, LongArray, OtherGguf, Value
from bus.models.gguf.parts import COUNT, SUFFIX, joined
from bus.models.gguf.tensors import FILE_TYPES

KV_VALUE_BYTES = 2
OVERHEAD, FIXED_BYTES = 1.10, 256_000_000
"""The memory of llama-server is the weights times `OVERHEAD`, plus the KV, plus `FIXED_BYTES`. The
placement computes with the same formula (`master.placement.memory_cost`)."""
MOST_LAYERS, MOST_WIDTH, MOST_CONTEXT = 4_096, 1 << 20, 1 << 28
MOST_TEMPLATE_CHARACTERS = 1 << 20
TOKENS, TEMPLATE = "tokenizer.ggml.tokens", "tokenizer.chat_template"
EMBEDDING = "token_embd.weight"
_EMBEDDING, _HEAD = -1, -2
_BLOCK = re.compile(r"blk\.(\d{1,5})\.")
"""How the names of a layer's tensors begin."""
_ARCHITECTURE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PROJECTOR = (
    "a vision or audio projector",
    "use the file of the language model; shoal gives GGUF models text only",
)
_NOT_TEXT: Mapping[str, tuple[str, str]] = {
    "clip": _PROJECTOR,
    "mmproj": _PROJECTOR,
    "adapter": (
        "a LoRA adapter",
        "merge it into its model with llama.cpp's llama-export-lora, or use both in MLX's format",
    ),
    "imatrix": ("an importance matrix", "use the file of the model itself"),
    "vocab": ("a vocabulary only", "use the file of the model itself"),
    "wavtokenizer-dec": ("a sound decoder", "use a language model; shoal cannot run sound models"),
}
"""Kinds of files that are not language models, with the remedy, by architecture or `general.type`.
"""
_ENCODERS = frozenset({
    "bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert",
    "neo-bert", "eurobert", "t5encoder", "gemma-embedding",
})  # fmt: skip
"""Architectures that only make vectors. They keep no KV."""
_NO_POOLING = "none"
_POOLINGS = (_NO_POOLING, "mean", "cls", "last", "rank")
"""llama.cpp's ways to make one vector of the vectors of all tokens. A file names one by its index
in this list."""
_RANK = "rank"
_HEAD_OUT, _TYPES = "cls.output.weight", "token_types.weight"
"""The tensor that makes a reranker's score, and the embeddings of a BERT's token types."""
_YES_NO = frozenset({"qwen3"})
"""Architectures of rerankers that answer yes or no; llama-server returns the chance of a yes."""


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """The facts of a model. `kv_bytes` is the KV cache of each layer per token, in bytes.
    `quantization` is the name that llama.cpp's tools use, such as Q4_K_M. `layer_bytes` are the
    weights of each layer; the token embedding has `embedding_bytes`, all other tensors
    `head_bytes`. `pooling`: how an embedding model makes one vector of the vectors of all tokens;
    empty if the model generates text. The vector has `vector_width` numbers. `ranks`: the model
    is a reranker."""

    architecture: str
    layers: int
    context_tokens: int
    vocabulary: int
    width: int
    kv_bytes: tuple[int, ...]
    quantization: str
    parameters: int
    weights_bytes: int
    template: str
    layer_bytes: tuple[int, ...] = ()
    embedding_bytes: int = 0
    head_bytes: int = 0
    pooling: str = ""
    vector_width: int = 0

    @property
    def ranks(self) -> bool:
        return self.pooling == _RANK

    @property
    def gives_chances(self) -> bool:
        """Return whether llama-server's scores are chances; those of other rerankers are the
        logarithms of odds."""
        return self.architecture in _YES_NO


def gguf_facts(first: GgufHeader, *rest: GgufHeader) -> GgufFacts:
    """Return the facts of the model whose file, or whose parts in order, have these headers. Raises
    BadGguf if a fact is missing or impossible, or if the file is something else."""
    header = joined((first, *rest))
    metadata = header.metadata
    architecture = _text(metadata, "general.architecture")
    if not _ARCHITECTURE.fullmatch(architecture):
        raise BadGguf(f"general.architecture is {architecture[:80]!r}")
    _check_kind(metadata, architecture, 1 + len(rest))
    if not header.tensors:
        raise BadGguf("the file has no tensors")
    layers = _count(metadata, f"{architecture}.block_count", MOST_LAYERS)
    width = _count(metadata, f"{architecture}.embedding_length", MOST_WIDTH)
    template = metadata.get(TEMPLATE, "")
    if not isinstance(template, str) or len(template) > MOST_TEMPLATE_CHARACTERS:
        raise BadGguf(f"{TEMPLATE} must be text of at most {MOST_TEMPLATE_CHARACTERS:,} characters")
    sizes = _sizes(header, layers)
    width_key = f"{architecture}.embedding_length_out"
    pooling = _pooling(metadata, architecture)
    if pooling == _RANK:
        _check_reranker(header, architecture, width)
    has_kv = architecture not in _ENCODERS
    return GgufFacts(
        architecture=architecture,
        layers=layers,
        context_tokens=_count(metadata, f"{architecture}.context_length", MOST_CONTEXT),
        vocabulary=_vocabulary(metadata),
        width=width,
        kv_bytes=_kv_bytes(metadata, architecture, layers, width) if has_kv else (0,) * layers,
        quantization=_quantization(header),
        parameters=sum(tensor.count for tensor in header.tensors),
        weights_bytes=sum(sizes.values()),
        template=template,
        layer_bytes=tuple(sizes[layer] for layer in range(layers)),
        embedding_bytes=sizes[_EMBEDDING],
        head_bytes=sizes[_HEAD],
        pooling=pooling,
        vector_width=_count(metadata, width_key, MOST_WIDTH, default=width)
        if pooling and pooling != _RANK
        else 0,
    )


def _sizes(header: GgufHeader, layers: int) -> Counter[int]:
    """Return the bytes of the weights by layer, and those of the embedding and of the head."""
    sizes = Counter[int]()
    for tensor in header.tensors:
        block = _BLOCK.match(tensor.name)
        layer = int(block[1]) if block else layers
        edge = _EMBEDDING if tensor.name == EMBEDDING else _HEAD
        sizes[layer if layer < layers else edge] += tensor.size_bytes
    return sizes


def _check_kind(metadata: Mapping[str, Value], architecture: str, files: int) -> None:
    """Raise BadGguf if these `files` are not a complete model that generates text or vectors."""
    for key in ("general.type", "general.architecture"):
        if (other := _NOT_TEXT.get(str(metadata.get(key)))) is not None:
            what, remedy = other
            raise OtherGguf(f"the file is {what}, not a language model", remedy)
    parts = metadata.get(COUNT, 1)
    if files == 1 and parts not in (0, 1):
        raise OtherGguf(
            f"the file is one of {parts} parts; all parts must be in one folder, "
            f"named NAME-00001-of-0000N{SUFFIX}",
            "download all parts into this folder, and keep their names",
        )


def _pooling(metadata: Mapping[str, Value], architecture: str) -> str:
    """Return the pooling (of `_POOLINGS`) of an embedding model or a reranker; empty if the model
    generates text."""
    key = f"{architecture}.pooling_type"
    number = metadata.get(key, 0)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(_POOLINGS):
        raise BadGguf(f"{key} is {_shown(number)}; it must be 0 to {len(_POOLINGS) - 1}")
    pooling = _POOLINGS[number]
    if pooling != _NO_POOLING:
        return pooling
    if architecture in _ENCODERS:
        raise OtherGguf(
            f"the embedding model does not say how to make vectors: {key} is missing",
            "convert the original model again, with its folder 1_Pooling",
        )
    return ""


def _check_reranker(header: GgufHeader, architecture: str, width: int) -> None:
    """Raise BadGguf if llama-server does not compute this reranker as its makers intended."""
    metadata = header.metadata
    rows = {tensor.name: tensor.count // width for tensor in header.tensors}
    outputs = rows.get(_HEAD_OUT)
    wanted = 2 if architecture in _YES_NO else 1
    if outputs is None:
        raise OtherGguf(
            f"the reranker has no tensor {_HEAD_OUT}",
            "convert the original model again with a later version of llama.cpp",
        )
    if outputs != wanted:
        raise OtherGguf(
            f"the classifier has {outputs} labels; a reranker of this kind has {wanted}",
            "use a reranker, such as bge-reranker-v2-m3",
        )
    is_pieces = metadata.get("tokenizer.ggml.model") == "bert"
    closes = metadata.get("tokenizer.ggml.add_eos_token") is True
    if rows.get(_TYPES, 1) > 1 or (is_pieces and not closes):
        raise OtherGguf(
            "the reranker is a BERT whose inputs need token types or a separator at the end; "
            "llama-server leaves these out",
            "use the original model with its safetensors weights",
        )


def _kv_bytes(
    metadata: Mapping[str, Value], architecture: str, layers: int, width: int
) -> tuple[int, ...]:
    """Return the bytes of each layer's KV cache per token. A layer without KV heads has none."""
    key = f"{architecture}.attention.head_count"
    heads = _by_layer(metadata, key, layers, default=(1,) * layers)
    kv_heads = _by_layer(metadata, f"{key}_kv", layers, default=heads)
    usual = width // max(1, *heads)
    sizes = [
        _count(metadata, f"{architecture}.attention.{name}_length", MOST_WIDTH, default=usual)
        for name in ("key", "value")
    ]
    return tuple(count * sum(sizes) * KV_VALUE_BYTES for count in kv_heads)


def _by_layer(
    metadata: Mapping[str, Value], key: str, layers: int, default: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the count in the metadata's `key` for each layer. The metadata has one count for all
    layers, or a list with one for each. Raises BadGguf if the value is neither."""
    value = metadata.get(key)
    if value is None:
        return default
    values = value if isinstance(value, tuple) else (value,) * layers
    counts = [count for count in values if isinstance(count, int) and 0 <= count <= MOST_WIDTH]
    if len(counts) != len(values) or len(counts) < layers:
        raise BadGguf(f"{key} is {_shown(value)}; it must be a count, or one for each layer")
    return tuple(counts[:layers])


def _vocabulary(metadata: Mapping[str, Value]) -> int:
    match metadata.get(TOKENS):
        case LongArray(count):
            return count
        case tuple(tokens) if tokens:
            return len(tokens)
        case _:
            raise BadGguf(f"the file's metadata has no {TOKENS}, so the model has no tokenizer")


def _quantization(header: GgufHeader) -> str:
    """Return the name of the file's quantisation. If the header names no known one, return the type
    that most bytes of the weights have."""
    named = header.metadata.get("general.file_type")
    if isinstance(named, int) and named in FILE_TYPES:
        return FILE_TYPES[named]
    sizes = Counter[str]()
    for tensor in header.tensors:
        sizes[tensor.type] += tensor.size_bytes
    return sizes.most_common(1)[0][0]


def _text(metadata: Mapping[str, Value], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise BadGguf(f"the file's metadata has no {key}")
    return value


def _count(metadata: Mapping[str, Value], key: str, most: int, default: int | None = None) -> int:
    value = metadata.get(key, default)
    if value is None:
        raise BadGguf(f"the file's metadata has no {key}")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
        raise BadGguf(f"{key} is {_shown(value)}; it must be 1 to {most:,}")
    return value


def _shown(value: Value) -> str:
    return repr(value)[:80]
