"""Talks to the disk: small cross-encoders with random weights, as transformers' folders and as GGUF
files of the same weights, and a naive computation of their scores.

A BERT has WordPiece tokens and two token types; an XLM-RoBERTa has one token type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from tests.harness.embedding_folders import ENCODER, encoder_weights
from tests.harness.gguf_files import RANK, from_bert

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "of", "is", "what", "where", "how", "cat", "dog", "bird", "house", "river", "sings")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz0123456789?.,!")
VOCABULARY = (*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS)
BERT: dict[str, Any] = {
    **ENCODER,
    "architectures": ["BertForSequenceClassification"],
    "vocab_size": len(VOCABULARY),
    "max_position_embeddings": 64,
    "id2label": {"0": "LABEL_0"},
    "pad_token_id": 0,
    "layer_norm_eps": 1e-12,
}
ROBERTA: dict[str, Any] = {
    **BERT,
    "architectures": ["XLMRobertaForSequenceClassification"],
    "model_type": "xlm-roberta",
    "max_position_embeddings": 66,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
DOUBLED = {"xlm-roberta", "roberta"}
"""Families with two separators between query and document."""


def write_reranker(folder: Path, *, doubled: bool | None = None, **config: Any) -> Path:
    """Write a cross-encoder; `config` replaces settings of `BERT`. `doubled`: whether there are two
    separators between query and document; None: as in its family."""
    whole = {**BERT, **config}
    folder.mkdir(parents=True)
    save_file(reranker_weights(whole), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(whole))
    doubled = whole["model_type"] in DOUBLED if doubled is None else doubled
    _tokenizer(doubled=doubled).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 1 << 60}))
    return folder


def reranker_weights(config: dict[str, Any], seed: int = 3) -> dict[str, np.ndarray[Any, Any]]:
    """Return random weights by transformers' names, with a head of one label."""
    rng, hidden = np.random.default_rng(seed), config["hidden_size"]
    weights = encoder_weights(config, seed)
    family = "roberta" if config["model_type"] in DOUBLED else "bert"
    pooler = {kind: weights.pop(f"pooler.dense.{kind}") for kind in ("weight", "bias")}
    named = {f"{family}.{name}": array for name, array in weights.items()}
    out = "classifier" if family == "bert" else "classifier.out_proj"
    dense = "bert.pooler.dense" if family == "bert" else "classifier.dense"
    named |= {f"{dense}.{kind}": array for kind, array in pooler.items()}
    named[f"{out}.weight"] = (2 * rng.standard_normal((1, hidden))).astype(np.float32)
    named[f"{out}.bias"] = rng.standard_normal(1).astype(np.float32)
    return named


def reranker_gguf(folder: Path, target: Path, **changed: Any) -> Path:
    """Write the cross-encoder of a folder as a GGUF file in float32."""
    config = json.loads((folder / "config.json").read_text())
    joined = {
        "tokenizer.ggml.token_type_count": config["type_vocab_size"],
        "tokenizer.ggml.eos_token_id": SPECIAL.index("[SEP]"),
        "tokenizer.ggml.add_eos_token": True,
    }
    return from_bert(folder, target, pooling=RANK, **joined, **changed)


def naive_logit(folder: Path, query: str, document: str) -> float:
    """Return the score of a document before the sigmoid, computed in float64, token by token."""
    config = json.loads((folder / "config.json").read_text())
    weights = {
        name.partition(".")[2] if name.startswith(("bert.", "roberta.")) else name: array.astype(
            np.float64
        )
        for name, array in load_file(folder / "model.safetensors").items()
    }
    encoding = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(query, document)
    types = encoding.type_ids if config["type_vocab_size"] > 1 else [0] * len(encoding.ids)
    first = config["pad_token_id"] + 1 if config["model_type"] in DOUBLED else 0
    return _forward(weights, config, encoding.ids, types, first)


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def _forward(
    weights: dict[str, np.ndarray[Any, Any]],
    config: dict[str, Any],
    tokens: Sequence[int],
    types: Sequence[int],
    first: int,
) -> float:
    def linear(name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + config["layer_norm_eps"])
        return centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2

    at = "embeddings."
    hidden = weights[f"{at}word_embeddings.weight"][list(tokens)]
    hidden = hidden + weights[f"{at}position_embeddings.weight"][first : first + len(tokens)]
    hidden = norm(
        f"{at}LayerNorm", hidden + weights[f"{at}token_type_embeddings.weight"][list(types)]
    )
    heads = config["num_attention_heads"]
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        query, key, value = (
            np.stack(np.split(linear(f"{at}attention.self.{name}", hidden), heads, axis=-1))
            for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
        chances /= chances.sum(axis=-1, keepdims=True)
        mixed = np.concatenate(list(chances @ value), axis=-1)
        hidden = norm(
            f"{at}attention.output.LayerNorm", hidden + linear(f"{at}attention.output.dense", mixed)
        )
        inner = gelu(linear(f"{at}intermediate.dense", hidden))
        hidden = norm(f"{at}output.LayerNorm", hidden + linear(f"{at}output.dense", inner))
    if config["model_type"] in DOUBLED:
        return float(
            linear("classifier.out_proj", np.tanh(linear("classifier.dense", hidden[0])))[0]
        )
    return float(linear("classifier", np.tanh(linear("pooler.dense", hidden[0])))[0])


def _tokenizer(*, doubled: bool) -> Tokenizer:
    ids = {piece: at for at, piece in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(WordPiece(vocab=ids, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    middle = "[SEP]:0 [SEP]:0" if doubled else "[SEP]:0"
    after = 0 if doubled else 1
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS]:0 $A:0 {middle} $B:{after} [SEP]:{after}",
        special_tokens=[(token, ids[token]) for token in SPECIAL],
    )
    return tokenizer
