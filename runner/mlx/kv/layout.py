# pyright: reportUnknownMemberType=false
# (mlx_lm is partially typed)
"""Talks to MLX: in which form the KV of each layer of a model is stored, and empty caches for a new
row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlx import nn

from bus.wire.kv import KvKind
from runner.library import make_prompt_cache
from runner.mlx.kv.codec import FULL_WIDTH, Codec
from runner.mlx.kv.row_kv import RowKV
from runner.mlx.kv.window import SinkWindow, WindowKV


@dataclass(frozen=True, slots=True)
class Shape:
    """The KV layout of a model. `codecs[i]` stores the ordinary (growing) KV of layer i; None: the
    layer does not keep the KV of all tokens (for example a recurrent state). The layers in
    `windowed` keep only the tokens in shoal's `window`. `least_window`: the fewest tokens that a
    layer with a window keeps, shoal's or the model's own; None: no layer has a window."""

    codecs: tuple[Codec | None, ...]
    vocabulary: int
    kv_bytes_per_token: int
    kv_bytes_fixed: int
    window: SinkWindow | None = None
    windowed: frozenset[int] = frozenset()
    least_window: int | None = None

    @property
    def trims(self) -> bool:
        """Return whether a row can be cut to fewer tokens: all of its KV is ordinary."""
        return None not in self.codecs

    @property
    def narrowed(self) -> int:
        """Return how many layers store their KV in reduced precision."""
        return sum(codec not in (None, FULL_WIDTH) for codec in self.codecs)

    def words(self, kind: KvKind) -> str:
        """Return how the layers store their KV, as text: "full", "8bit" or "8bit in 4 of 24
        layers". `kind` is the format that was requested; some layers may not support it."""
        layers, narrowed = len(self.codecs), self.narrowed + len(self.windowed)
        if not narrowed:
            return "full"
        return kind if narrowed == layers else f"{kind} in {narrowed} of {layers} layers"

    def readers(self, *, packed: bool) -> list[Codec]:
        """Return for each layer of a batch the codec with which attention reads its KV. Requires
        that all layers have ordinary KV. `packed`: attention reads the stored KV without decoding
        it."""
        held = [codec for codec in self.codecs if codec is not None]
        return [codec.packed() if packed else codec for codec in held]


def new_caches(model: nn.Module, shape: Shape, reserve: int) -> list[Any]:
    """Return new empty caches for one row, one per layer. Layers with ordinary KV get a `RowKV` or
    `WindowKV`; others get mlx-lm's cache."""
    made = [None] * len(shape.codecs) if shape.trims else make_prompt_cache(model)
    if shape.window is not None:
        window = shape.window
        made = [
            WindowKV(window) if at in shape.windowed else empty for at, empty in enumerate(made)
        ]
    return [
        cache if codec is None else RowKV(reserve, codec)
        for codec, cache in zip(shape.codecs, made, strict=True)
    ]
