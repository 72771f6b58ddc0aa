# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `quantize` and its kin partly untyped)
"""Talks to MLX: stores the keys and values of a layer in full or in reduced precision.

Stored KV is a tuple of arrays (parts), each of shape (rows, heads, tokens, width of the part). Code
that cuts, joins or moves tokens needs to know nothing else about them. The stored values of a token
depend only on its own keys and values, so other tokens and chunk sizes do not change them.
Attention always reads the stored form, even for the newest token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import mlx.core as mx

from bus.wire.kv import BITS, KvKind, group_of

Parts = tuple[mx.array, ...]


class Codec(Protocol):
    """A storage format for the keys and values of a layer."""

    @property
    def parts(self) -> int:
        """Return the number of arrays in the stored form."""
        ...

    def encode(self, keys: mx.array, values: mx.array) -> Parts:
        """Return keys and values, each (rows, heads, tokens, width), in the stored form."""
        ...

    def fetch(self, parts: Parts) -> tuple[Any, Any]:
        """Return the keys and values in the form in which attention reads them."""
        ...

    def mark(self, cache: Any) -> None:
        """Set the attributes of a cache from which the model's attention learns in which form
        `fetch` returns keys and values."""
        ...

    def packed(self) -> Codec:
        """Return this codec for attention that reads the stored parts without decoding them."""
        ...


@dataclass(frozen=True, slots=True)
class FullWidth:
    """Keys and values as the model computes them."""

    @property
    def parts(self) -> int:
        return 2

    def encode(self, keys: mx.array, values: mx.array) -> Parts:
        return keys, values

    def fetch(self, parts: Parts) -> tuple[Any, Any]:
        return parts[0], parts[1]

    def mark(self, cache: Any) -> None:
        """Do nothing: attention needs no attributes to read KV in full precision."""

    def packed(self) -> Codec:
        return self


@dataclass(frozen=True, slots=True)
class FewerBits:
    """Stores keys and values as codes of `bits` bits. Each `group` values of a head share a scale
    and an offset.

    Without `as_held`, `fetch` restores full precision before attention reads keys and values. With
    `as_held`, it returns the codes, which mlx-lm's attention for quantised KV multiplies directly.
    """

    bits: int
    group: int
    as_held: bool = False

    @property
    def parts(self) -> int:
        return 6

    def encode(self, keys: mx.array, values: mx.array) -> Parts:
        """Return six arrays: codes, scales and offsets of the keys, then those of the values."""
        return (*self._coded(keys), *self._coded(values))

    def fetch(self, parts: Parts) -> tuple[Any, Any]:
        """Return keys and values; with `as_held` the codes, scales and offsets of each."""
        if self.as_held:
            return parts[:3], parts[3:]
        return self._decoded(parts[:3]), self._decoded(parts[3:])

    def mark(self, cache: Any) -> None:
        """With `as_held`, tell mlx-lm's attention that the parts are quantised."""
        if self.as_held:
            cache.bits, cache.group_size = self.bits, self.group

    def packed(self) -> Codec:
        """Return this codec for attention that reads the stored parts without decoding them."""
        return replace(self, as_held=True)

    def _coded(self, array: mx.array) -> Sequence[mx.array]:
        return mx.quantize(array, group_size=self.group, bits=self.bits)

    def _decoded(self, parts: Sequence[mx.array]) -> mx.array:
        codes, scales, offsets = parts
        return mx.dequantize(codes, scales, offsets, group_size=self.group, bits=self.bits)


FULL_WIDTH = FullWidth()


def codec_for(kind: KvKind, *widths: int) -> Codec:
    """Return a codec of the requested kind for a layer whose keys and values have these widths. If
    no possible group size divides the widths, the codec stores full precision instead."""
    group = group_of(*widths)
    return FewerBits(BITS[kind], group) if kind in BITS and group else FULL_WIDTH
