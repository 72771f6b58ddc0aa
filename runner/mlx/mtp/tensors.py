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
    """An MTP head cannot be used; `args[0]` says why."""


@dataclass(frozen=True, slots=True)
class HeadTensors:
    """The tensors of each part of an MTP head, by their names within the part, such as `weight`.
    `feeds_normed`: guesses after the first start from the head's normed output."""

    embedding_norm: Tensors
    hidden_norm: Tensors
    projection: Tensors
    layer: Tensors
    norm: Tensors
    feeds_normed: bool


def read_head(folder: Path, target: Path, layers: int, vocabulary: int) -> HeadTensors:
    """Read the MTP head in a folder, which may be the folder of its model, `target`. The model has
    `layers` layers and `vocabulary` tokens. Raises UnusableHead with the reason."""
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
        raise UnusableHead(f"shoal does not know the purpose of its tensor {names.unknown[0]}")
    for name in names.parts.get(VOCABULARY, {}).values():
        if arrays[name].ndim == 2 and len(arrays[name]) != vocabulary:
            why = (
                f"its tensor {name} is for {len(arrays[name]):,} tokens; the model's vocabulary "
                f"has {vocabulary:,}"
            )
            raise UnusableHead(why)
    has_tokenizer = folder != target and (folder / TOKENIZER).exists()
    if has_tokenizer and (other := other_vocabulary(folder, target)) is not None:
        raise UnusableHead(other)
    parts: dict[str, Tensors] = {}
    for part in (EMBEDDING_NORM, HIDDEN_NORM, PROJECTION, LAYER, NORM):
        if part not in names.parts:
            raise UnusableHead(f"the tensors of its {part.replace('_', ' ')} are missing")
        parts[part] = {name: arrays[full] for name, full in names.parts[part].items()}
    return HeadTensors(**parts, feeds_normed=names.feeds_normed)
