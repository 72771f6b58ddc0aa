"""A directory that cannot be run ends with the reason in words, and with nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from runner.mlx.embedding import EmbeddingEngine
from runner.mlx.model.load import UnloadableModel
from tests.harness.embedding_folders import (
    NORMALISE,
    POOLING,
    TRANSFORMER,
    add_dense,
    write_decoder,
    write_encoder,
)

Breaks = Callable[[Path], object]


def config(**more: Any) -> Breaks:
    return lambda folder: (folder / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text()) | more)
    )


def modules(*kinds: dict[str, Any]) -> Breaks:
    return lambda folder: (folder / "modules.json").write_text(json.dumps(kinds))


def text(name: str, said: str) -> Breaks:
    return lambda folder: (folder / name).write_text(said)


def weights(change: Callable[[dict[str, Any]], object]) -> Breaks:
    def changed(folder: Path) -> None:
        held = load_file(folder / "model.safetensors")
        change(held)
        save_file(held, folder / "model.safetensors")

    return changed


WORDS = "embeddings.word_embeddings.weight"
OTHER = {**NORMALISE, "type": "sentence_transformers.models.LSTM", "path": "2_LSTM"}
ENCODERS: dict[str, tuple[Breaks, str]] = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights named model"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "config no JSON": (text("config.json", "{"), "config.json cannot be read"),
    "config a list": (
        text("config.json", "[]"),
        "config.json cannot be read .it is not a JSON object",
    ),
    "config too deep": (text("config.json", "[" * 100_000), "config.json cannot be read"),
    "weights no safetensors": (
        text("model.safetensors", "nothing at all"),
        "is not a safetensors file",
    ),
    "one missing": (weights(lambda held: held.pop(WORDS)), "missing, for example words.weight"),
    "one unknown": (weights(lambda held: held.update(odd=held[WORDS])), "unknown weight 'odd'"),
    "wrong shape": (
        weights(lambda held: held.update({WORDS: held[WORDS][:9].copy()})),
        r"words.weight has shape \(9, 32\); the model's settings require \(259, 32\)",
    ),
    "whole numbers": (
        weights(lambda held: held.update({WORDS: held[WORDS].astype(np.int32)})),
        "which is not supported",
    ),
    "no numbers": (
        weights(lambda held: held.update({WORDS: np.full_like(held[WORDS], np.nan)})),
        "weights are damaged",
    ),
    "more layers": (config(num_hidden_layers=3), "missing, for example layers.2"),
    "fewer layers": (config(num_hidden_layers=1), "layers.1.* does not describe"),
    "endless layers": (config(num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
    "heads of no size": (config(num_attention_heads=0), "num_attention_heads is 0"),
    "heads do not divide": (config(num_attention_heads=5), "is not divisible"),
    "hidden in words": (config(hidden_size="big"), "hidden_size is big"),
    "strange activation": (config(hidden_act="swoosh"), "hidden_act 'swoosh'"),
    "relative positions": (config(position_embedding_type="relative_key"), "relative_key"),
    "a decoder's BERT": (config(is_decoder=True), "is_decoder"),
    "own code": (config(auto_map={"AutoModel": "x.y"}), "its own code"),
    "a classifier": (config(architectures=["BertForSequenceClassification"]), "is a classifier"),
    "quantized": (config(quantization={"bits": 4, "group_size": 32}), "quantized"),
    "unknown module": (modules(TRANSFORMER, POOLING, OTHER), r"module LSTM \(2_LSTM\)"),
    "no pooling": (modules(TRANSFORMER, NORMALISE), "Transformer, Pooling is supported"),
    "modules no list": (text("modules.json", "{}"), "must list a transformer"),
    "a module elsewhere": (modules(TRANSFORMER, {**POOLING, "path": "../x"}), "not a folder of"),
    "pooling missing": (lambda f: shutil.rmtree(f / "1_Pooling"), "1_Pooling/config.json is mi"),
    "pooling unknown": (
        text("1_Pooling/config.json", '{"pooling_mode": "sum"}'),
        "unsupported pooling",
    ),
    "pooling too wide": (
        text("1_Pooling/config.json", '{"word_embedding_dimension": 999}'),
        "size 999; those of the model have size 32",
    ),
    "prompt left out": (
        lambda f: (
            text("1_Pooling/config.json", '{"include_prompt": false}')(f),
            text(
                "config_sentence_transformers.json",
                '{"default_prompt_name": "q", "prompts": {"q": "query: "}}',
            )(f),
        ),
        "include_prompt",
    ),
    "dense without weights": (
        lambda f: (add_dense(f, 8) / "2_Dense/model.safetensors").unlink(),
        "2_Dense has no model.safetensors",
    ),
    "dense of other sizes": (
        lambda f: text("2_Dense/config.json", '{"in_features": 32, "out_features": 9}')(
            add_dense(f, 8)
        ),
        r"linear.weight has shape \(8, 32\)",
    ),
    "dense that does not fit": (
        lambda f: text("2_Dense/config.json", '{"in_features": 31, "out_features": 8}')(
            add_dense(f, 8)
        ),
        "2_Dense expects 31 inputs but gets 32",
    ),
}
DECODERS: dict[str, tuple[Breaks, str]] = {
    "unknown family": (config(model_type="no_such_family"), "no_such_family"),
    "both ways": (config(use_bidirectional_attention=True), "is bidirectional"),
    "one missing": (
        weights(lambda held: held.pop("norm.weight")),
        "1 weights of the model are missing",
    ),
    "a text model": (lambda f: (f / "modules.json").unlink(), "it generates text"),
    "more layers": (config(num_hidden_layers=3), "weights of the model are missing"),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_that_cannot_be_loaded_says_why(tmp_path: Path, name: str) -> None:
    breaks, why = ENCODERS[name]
    folder = write_encoder(tmp_path / "the-model")
    breaks(folder)
    with pytest.raises(UnloadableModel, match=f"the-model: .*{why}"):
        EmbeddingEngine.load(folder)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_that_cannot_be_loaded_says_why(tmp_path: Path, name: str) -> None:
    breaks, why = DECODERS[name]
    folder = write_decoder(tmp_path / "the-model")
    breaks(folder)
    with pytest.raises(UnloadableModel, match=f"the-model: .*{why}"):
        EmbeddingEngine.load(folder)
