"""Talks to the disk: small embedding models with random weights, in sentence-transformers' files.

A token is a byte. The same seed gives the same weights on any machine, so that what another
library made of them may be kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from tests.harness.random_qwen3 import random_weights

Weights = dict[str, np.ndarray[Any, Any]]
HIDDEN = 32
SPECIALS = ["<s>", "<pad>", "</s>"]
ENCODER: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 259,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "pad_token_id": 1,
}
DECODER: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 259,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
OF_PACKAGE = "sentence_transformers.models"
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": f"{OF_PACKAGE}.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{OF_PACKAGE}.Pooling"}
NORMALISE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{OF_PACKAGE}.Normalize"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": f"{OF_PACKAGE}.Dense"}


def write_encoder(folder: Path, pooling: Sequence[str] = ("mean_tokens",), **config: Any) -> Path:
    """Write a BERT (or what `config` makes of it) that pools so and then normalises."""
    whole = {**ENCODER, **config}
    folder.mkdir(parents=True)
    save_file(encoder_weights(whole), folder / "model.safetensors")
    _write_rest(folder, whole, pooling, [NORMALISE])
    _tokenizer(before=["<s>"]).save(str(folder / "tokenizer.json"))
    return folder


def write_decoder(folder: Path, pooling: Sequence[str] = ("lasttoken",), **config: Any) -> Path:
    """Write a Qwen3 that pools so and then normalises; its tensors are named as an embedding
    model's are, without that of the body."""
    whole = {**DECODER, **config}
    folder.mkdir(parents=True)
    named = {k.removeprefix("model."): v for k, v in random_weights(whole, scale=2.0).items()}
    save_file(named, folder / "model.safetensors")
    _write_rest(folder, whole, pooling, [NORMALISE])
    _tokenizer(before=[]).save(str(folder / "tokenizer.json"))
    return folder


def add_dense(
    folder: Path, outputs: int, *, activation: str = "activation.Tanh", bias: bool = True
) -> Path:
    """Put a linear layer between a model's pooling and its end, which normalises."""
    rng = np.random.default_rng(11)
    inputs = json.loads((folder / "1_Pooling" / "config.json").read_text())
    width = HIDDEN * sum(on is True for name, on in inputs.items() if name.startswith("pooling"))
    weights: Weights = {"linear.weight": _matrix(rng, outputs, width)}
    if bias:
        weights["linear.bias"] = _matrix(rng, 1, outputs)[0]
    (folder / "2_Dense").mkdir()
    save_file(weights, folder / "2_Dense" / "model.safetensors")
    _write(
        folder / "2_Dense" / "config.json",
        {
            "in_features": width,
            "out_features": outputs,
            "bias": bias,
            "activation_function": f"torch.nn.modules.{activation}",
        },
    )
    _write(
        folder / "modules.json", [TRANSFORMER, POOLING, DENSE, {**NORMALISE, "idx": 3, "name": "3"}]
    )
    return folder


def encoder_weights(config: dict[str, Any], seed: int = 7) -> Weights:
    """Return random weights by transformers' names for a BERT or RoBERTa."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    found: Weights = {}

    def norm(name: str) -> None:
        found[f"{name}.weight"] = (1 + 0.2 * rng.standard_normal(hidden)).astype(np.float32)
        found[f"{name}.bias"] = (0.2 * rng.standard_normal(hidden)).astype(np.float32)

    def linear(name: str, outputs: int, inputs: int) -> None:
        found[f"{name}.weight"] = _matrix(rng, outputs, inputs)
        found[f"{name}.bias"] = (0.2 * rng.standard_normal(outputs)).astype(np.float32)

    for name, rows in (
        ("word_embeddings", config["vocab_size"]),
        ("position_embeddings", config["max_position_embeddings"]),
        ("token_type_embeddings", config["type_vocab_size"]),
    ):
        found[f"embeddings.{name}.weight"] = rng.standard_normal((rows, hidden)).astype(np.float32)
    norm("embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        for name in ("query", "key", "value"):
            linear(f"{at}attention.self.{name}", hidden, hidden)
        linear(at + "attention.output.dense", hidden, hidden)
        norm(at + "attention.output.LayerNorm")
        linear(at + "intermediate.dense", inner, hidden)
        linear(at + "output.dense", hidden, inner)
        norm(at + "output.LayerNorm")
    linear("pooler.dense", hidden, hidden)
    return found


def _write_rest(
    folder: Path, config: dict[str, Any], pooling: Sequence[str], ends: list[dict[str, Any]]
) -> None:
    _write(folder / "config.json", config)
    _write(folder / "modules.json", [TRANSFORMER, POOLING, *ends])
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": True for mode in pooling}
    _write(folder / "1_Pooling/config.json", {"word_embedding_dimension": HIDDEN, **modes})
    special = {"bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>"}
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40, **special},
    )


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2))


def _tokenizer(before: list[str]) -> Tokenizer:
    """Return a tokenizer of single bytes (ids 3..258) that puts `</s>` behind each text, and
    `before` before it; it would cut at 5 tokens and fill up to 9, as some files have it."""
    ids = {token: at for at, token in enumerate([*SPECIALS, *sorted(ByteLevel.alphabet())])}
    tokenizer = Tokenizer(BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    tokenizer.post_processor = TemplateProcessing(
        single=" ".join([*before, "$A", "</s>"]),
        special_tokens=[(token, ids[token]) for token in SPECIALS],
    )
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    return tokenizer


def _matrix(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray[Any, Any]:
    return (2 * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
