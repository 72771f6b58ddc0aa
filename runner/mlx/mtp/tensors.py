# pyright: reportUnknownMemberType=false
# (`mx.load` is partially typed)
"""Talks to the disk and MLX: reads the tensors of an MTP head, unevaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from bus.models.mtp_heads import (
    EMBEDDING_NORM,
    HIDDEN_NORM,
    LAYER,
    NORM,
    PROJECTION,
    VOCABULARY,
    head_names,
)
from runner.mlx.model.files import TOKENIZER, other_vocabulary, wrong_file

Tensors = Mapping[str, mx.array]


class UnusableHead(Exception):
    """The head cannot be used; `args[0]` says why."""


@dataclass(frozen=True, slots=True)
class HeadTensors:
    """The tensors of a head by their names in each part, such as `weight`. `feeds_normed`: deeper
    guesses start from its normed output."""

    embedding_norm: Tensors
    hidden_norm: Tensors
    projection: Tensors
    layer: Tensors
    norm: Tensors
    feeds_normed: bool


def read_head(folder: Path, target: Path, layers: int, vocabulary: int) -> HeadTensors:
    """Return the head in a folder, which may be that of its model (`target`), a model of so many
    layers and tokens. Raises UnusableHead."""
    arrays: dict[str, mx.array] = {}
    files = sorted(folder.glob("*.safetensors"))
    for path in files:
        try:
            problem = wrong_file(path)
            content: Any = {} if problem is not None else mx.load(str(path))
        except (OSError, RuntimeError, ValueError) as error:
            problem, content = f"cannot be read: {error}", {}
        if problem is not None:
            raise UnusableHead(f"{folder.name}/{path.name} {problem}")
        arrays.update(cast(dict[str, mx.array], content))
    names = head_names(arrays, layers)
    if names is None:
        raise UnusableHead(f"the folder {folder.name} has no tensors of an MTP head")
    if names.unknown:
        raise UnusableHead(f"the tensor {names.unknown[0]} has no place in it")
    for name in names.parts.get(VOCABULARY, {}).values():
        if arrays[name].ndim == 2 and len(arrays[name]) != vocabulary:
            why = f"{name} has {len(arrays[name]):,} rows; the model has {vocabulary:,} tokens"
            raise UnusableHead(why)
    has_tokenizer = folder != target and (folder / TOKENIZER).exists()
    if has_tokenizer and (other := other_vocabulary(folder, target)) is not None:
        raise UnusableHead(other)
    parts: dict[str, Tensors] = {}
    for part in (EMBEDDING_NORM, HIDDEN_NORM, PROJECTION, LAYER, NORM):
        if part not in names.parts:
            raise UnusableHead(f"it lacks the tensors of its {part.replace('_', ' ')}")
        parts[part] = {name: arrays[full] for name, full in names.parts[part].items()}
    return HeadTensors(**parts, feeds_normed=names.feeds_normed)
