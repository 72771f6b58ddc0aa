# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: adds each row's adapter to the layers of a model.

For each adapted layer, the LoRA matrices of all adapters are stacked in one array. Matrix 0 of a
stack is zeros, for rows without an adapter. So is the matrix of an adapter that does not change
this layer. If the rows of a forward pass have different adapters, one gathered matrix product
computes all of them. If all rows have the same adapter, a plain matrix product is enough. If a
layer sums its output over the ranks of a tensor group, each rank adds its part of the adapters'
output before that sum.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import mlx.core as mx

from runner.mlx.ranks.comm import MARK_BYTES
from runner.mlx.ranks.layer_probe import retype
from runner.mlx.ranks.linear_shares import SUMMED, summed_with

KEPT_CHOICES = 64


@dataclass(frozen=True, slots=True)
class LayerMatrices:
    """The stacked LoRA matrices of all adapters for one layer. `a` is (adapters + 1, inputs, rank)
    and `b` is (adapters + 1, rank, outputs), where `rank` is the rank of the matrices."""

    a: mx.array
    b: mx.array

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which adapter each row of a forward pass uses. `only` is the adapter's number if all rows use
    the same one. Otherwise `numbers`, (rows,), and `scales`, (rows, 1, 1), apply."""

    rows: int
    only: int | None
    scale: float
    numbers: mx.array
    scales: mx.array


class AdapterBank:
    """The adapters of a loaded model, by name. `refused` maps the name of each adapter that cannot
    be applied to the reason."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.digests: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._scales: list[float] = [0.0]
        self._layers: dict[str, LayerMatrices] = {}
        self._choice: _Choice | None = None
        self._choices: dict[tuple[int, ...], _Choice | None] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the adapters that rows may use."""
        return tuple(self._numbers)

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self._layers.values())

    def mark(self, name: str) -> bytes:
        """Return a digest of an adapter's name and content, `MARK_BYTES` long. The ranks of a group
        compare these digests, to agree on the adapters that every rank has."""
        return sha256(f"{name} {self.digests[name]}".encode()).digest()[:MARK_BYTES]

    def hold(
        self,
        scales: Mapping[str, float],
        layers: Mapping[str, LayerMatrices],
        modules: Mapping[str, Any],
    ) -> None:
        """Apply adapters from now on. `scales` maps their names to their scales, in the order of
        the matrices in `layers`. `layers` and `modules` have the same keys: the layers' paths in
        the model."""
        self._numbers = {name: number for number, name in enumerate(scales, start=1)}
        self._scales = [0.0, *scales.values()]
        self._layers = dict(layers)
        for path in layers:
            retype(modules[path], "Adapted", self._called(modules[path], path))

    def refuse(self, why: Mapping[str, str]) -> None:
        """Stop applying these adapters; `why` maps each to the reason."""
        self.refused.update(why)
        self._numbers = {n: at for n, at in self._numbers.items() if n not in why}
        if not self._numbers:
            self._layers = {}

    @contextmanager
    def applied(self, rows: Sequence[str]) -> Generator[bool]:
        """Within the context, forward passes use these adapters. `rows` names the adapter of each
        row, in order; an empty name means none. Yields whether any row has an adapter. Raises
        KeyError for an unknown name."""
        if not any(rows):
            yield False
            return
        self._choice = self._chosen(tuple(self._numbers[name] if name else 0 for name in rows))
        try:
            yield True
        finally:
            self._choice = None

    def _chosen(self, numbers: tuple[int, ...]) -> _Choice | None:
        if numbers not in self._choices:
            if len(self._choices) >= KEPT_CHOICES:
                self._choices.pop(next(iter(self._choices)))
            scales = [self._scales[number] for number in numbers]
            only = numbers[0] if len(set(numbers)) == 1 else None
            self._choices[numbers] = _Choice(
                len(numbers),
                only,
                scales[0],
                mx.array(numbers, dtype=mx.uint32),
                mx.array(scales, dtype=mx.float32)[:, None, None],
            )
        return self._choices[numbers]

    def _called(self, layer: Any, path: str) -> Callable[..., mx.array]:
        plain: Callable[..., mx.array] = type(layer).__call__

        def called(module: Any, x: mx.array) -> mx.array:
            """Return the layer's output plus the output of each row's adapter."""
            choice = self._choice
            if choice is None:
                return plain(module, x)

            def with_adapters(out: mx.array) -> mx.array:
                """Return `out`, the layer's output for `x` or one rank's part of it, plus the
                adapters' output for `x`."""
                return out + _added(choice, self._layers[path], x, out)

            if isinstance(module, SUMMED):
                return summed_with(module, x, with_adapters)
            return with_adapters(plain(module, x))

        return called


def _added(choice: _Choice, layer: LayerMatrices, x: mx.array, out: mx.array) -> mx.array:
    """Return the adapters' part of a layer's output for `x`. The first dimension of `x` is the
    rows, or rows and tokens flattened into one dimension, row by row."""
    if choice.only is not None:
        made = (x @ layer.a[choice.only]) @ layer.b[choice.only]
        return (choice.scale * made).astype(out.dtype)
    rows = x.reshape(choice.rows, -1, x.shape[-1])
    narrow = mx.gather_mm(rows, layer.a, rhs_indices=choice.numbers)
    made = mx.gather_mm(narrow, layer.b, rhs_indices=choice.numbers)
    return (choice.scales * made).astype(out.dtype).reshape(out.shape)
