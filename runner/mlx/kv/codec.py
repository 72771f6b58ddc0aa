# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `quantize` and its kin partly untyped)
"""Talks to MLX: how the keys and values of a layer are stored: in full or in reduced precision.

Stored KV is a tuple of arrays, its parts, each (rows, heads, tokens, width of the part). Code that
cuts, joins, moves and keeps tokens need not know more. The stored values of a token depend only on
its own keys and values, so neither neighbours nor chunk sizes change them. Attention sees the
stored values, also of the newest token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import mlx.core as mx

from bus.wire.kv import BITS, KvKind, group_of

Parts = tuple[mx.array, ...]


class Codec(Protocol):
    """One storage format of a layer's keys and values."""

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
        """Set the attributes of a cache by which the model's attention knows the form of
        `fetch`."""
        ...

    def packed(self) -> Codec:
        """Return the codec for attention that reads stored parts without decoding them."""
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
    """Keys and values as codes of `bits` bits, with a scale and an offset per `group` values of a
    head.

    Attention reads keys and values restored to full precision while it computes a layer; with
    `as_held` it reads the codes, which mlx-lm's attention multiplies directly.
    """

    bits: int
    group: int
    as_held: bool = False

    @property
    def parts(self) -> int:
        return 6

    def encode(self, keys: mx.array, values: mx.array) -> Parts:
        """Return codes, scales and offsets of the keys, then of the values."""
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
        """Return the codec for attention that reads stored parts without decoding them."""
        return replace(self, as_held=True)

    def _coded(self, array: mx.array) -> Sequence[mx.array]:
        return mx.quantize(array, group_size=self.group, bits=self.bits)

    def _decoded(self, parts: Sequence[mx.array]) -> mx.array:
        codes, scales, offsets = parts
        return mx.dequantize(codes, scales, offsets, group_size=self.group, bits=self.bits)


FULL_WIDTH = FullWidth()


def codec_for(kind: KvKind, *widths: int) -> Codec:
    """Return the codec for a layer whose keys and values have these widths. It is of the requested
    kind; if no group size divides the widths, it stores full precision."""
    group = group_of(*widths)
    return FewerBits(BITS[kind], group) if kind in BITS and group else FULL_WIDTH
