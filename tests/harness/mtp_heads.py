# pyright: reportUnknownMemberType=false
# (mlx leaves arguments of `save_safetensors` untyped)
"""Talks to the disk: MTP heads for small models, made from their own last layers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx

DEEPSEEK = {
    "enorm.weight": "pre_fc_norm_embedding.weight",
    "hnorm.weight": "pre_fc_norm_hidden.weight",
    "eh_proj.weight": "fc.weight",
    "shared_head.norm.weight": "norm.weight",
}


def head_of(model: Path) -> dict[str, mx.array]:
    """A head with the names of Qwen3-Next: the model's last layer, of its hidden states alone but
    for a little of the embedding."""
    config = json.loads((model / "config.json").read_text())
    width, last = config["hidden_size"], config["num_hidden_layers"] - 1
    weights: Any = mx.load(str(model / "model.safetensors"))
    within = re.compile(rf"(?:^|\.)layers\.{last}\.(.+)")
    found = ((within.search(name), array) for name, array in weights.items())
    layer = {f"mtp.layers.0.{match[1]}": array for match, array in found if match is not None}
    ones = mx.ones((width,))
    return {
        **layer,
        "mtp.fc.weight": mx.concatenate([0.1 * mx.eye(width), mx.eye(width)], axis=1),
        "mtp.pre_fc_norm_embedding.weight": 1.5 * ones,
        "mtp.pre_fc_norm_hidden.weight": 0.8 * ones,
        "mtp.norm.weight": weights.get("model.norm.weight", ones),
    }


def as_deepseek(head: dict[str, mx.array], number: int) -> dict[str, mx.array]:
    """The same head with the names of DeepSeek-V3: a layer `number` after the model's last one."""
    renamed = {f"model.layers.{number}.{new}": head[f"mtp.{old}"] for new, old in DEEPSEEK.items()}
    inside = "mtp.layers.0."
    for name, array in head.items():
        if name.startswith(inside):
            renamed[f"model.layers.{number}.{name.removeprefix(inside)}"] = array
    return renamed


def write_head(folder: Path, tensors: dict[str, mx.array]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return folder
