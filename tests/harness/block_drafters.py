# pyright: reportUnknownMemberType=false
# (mlx leaves arguments of `save_safetensors` untyped)
"""Talks to the disk: block drafters with random weights, for small models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from bus.models.block_drafters import CONFIG, BlockShape


def shape_of(model: Path, **parts: Any) -> BlockShape:
    """The shape of a small drafter for the model in a folder."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    text = config.get("text_config") or config
    small: dict[str, Any] = {
        "drafter": "block",
        "hidden_size": text["hidden_size"],
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": text["vocab_size"],
        "block_length": 4,
        "window": 8,
    }
    return BlockShape.model_validate({**small, **parts})


def random_tensors(shape: BlockShape, seed: int = 1) -> dict[str, mx.array]:
    """Weights that guess something different for each context."""
    mx.random.seed(seed)
    return {
        name: mx.ones(size) if "norm" in name else mx.random.normal(size) * size[-1] ** -0.5
        for name, size in shape.tensors().items()
    }


def write_block(
    folder: Path, shape: BlockShape, tensors: dict[str, mx.array] | None = None
) -> Path:
    """A drafter's folder, with these weights or random ones."""
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors or random_tensors(shape))
    (folder / CONFIG).write_text(json.dumps(shape.model_dump(mode="json")))
    return folder
