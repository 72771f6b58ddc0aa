# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `quantize` and its kin partly untyped)
"""Talks to MLX: how the keys and values of a layer are held: as they are, or in fewer bits.

Held KV is a tuple of arrays (rows, heads, tokens, width of the part): what cuts, joins, moves and
keeps tokens knows no more of it. A token's parts depend on its own keys and
values alone, so neither neighbours nor the chunks in which a prompt came change them; and attention
sees what is held, of the newest token too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import mlx.core as mx

from bus.wire.kv import BITS, KvKind, group_of

Parts = tuple[mx.array, ...]


class Codec(Protocol):
    """One way to hold a layer's keys and values."""

    def encode(self, keys: mx.array, values: mx.array) -> Parts:
        """Return what is held of keys and values, each (rows, heads, tokens, width)."""
        ...

    def fetch(self, parts: Parts) -> tuple[Any, Any]:
        """Return the keys and values that attention is given for held parts."""
        ...

    def mark(self, cache: Any) -> None:
        """Tell the model, by the attributes of what it calls a cache, how to read those."""
        ...

    def packed(self) -> Codec:
        """Return the codec that gives attention the same parts as they are held, where it can."""
        ...


@dataclass(frozen=True, slots=True)
class FullWidth:
    """Keys and values as the model computes them."""

    def encode(self, keys: mx.array, values: mx.array) -> Parts:
        """Return both."""
        return keys, values

    def fetch(self, parts: Parts) -> tuple[Any, Any]:
        """Return both."""
        return parts[0], parts[1]

    def mark(self, cache: Any) -> None:
        """Leave the cache as it is."""

    def packed(self) -> Codec:
        """Return itself."""
        return self


@dataclass(frozen=True, slots=True)
class FewerBits:
    """Codes of `bits` bits, and a scale and an offset for each `group` values of a head.

    Attention is given keys and values in full width for as long as it computes a layer; or with
    `as_held` the codes, which mlx-lm's attention multiplies as they are.
    """

    bits: int
    group: int
    as_held: bool = False

    def encode(self, keys: mx.array, values: mx.array) -> Parts:
        """Return codes, scales and offsets of the keys, then of the values."""
        return (*self._coded(keys), *self._coded(values))

    def fetch(self, parts: Parts) -> tuple[Any, Any]:
        """Return keys and values, or where `as_held` the three parts of each."""
        if self.as_held:
            return parts[:3], parts[3:]
        return self._decoded(parts[:3]), self._decoded(parts[3:])

    def mark(self, cache: Any) -> None:
        """Have mlx-lm's attention take the parts for what they are, where it is given those."""
        if self.as_held:
            cache.bits, cache.group_size = self.bits, self.group

    def packed(self) -> Codec:
        """Return the codec whose parts attention gets as they are held."""
        return replace(self, as_held=True)

    def _coded(self, array: mx.array) -> Sequence[mx.array]:
        return mx.quantize(array, group_size=self.group, bits=self.bits)

    def _decoded(self, parts: Sequence[mx.array]) -> mx.array:
        codes, scales, offsets = parts
        return mx.dequantize(codes, scales, offsets, group_size=self.group, bits=self.bits)


FULL_WIDTH = FullWidth()


def codec_for(kind: KvKind, *widths: int) -> Codec:
    """Return the codec of a layer whose keys and values have these widths: of the kind, or full
    width where no group divides them."""
    group = group_of(*widths)
    return FewerBits(BITS[kind], group) if kind in BITS and group else FULL_WIDTH
