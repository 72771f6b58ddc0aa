"""Talks to MLX: small decode batches through a compiled forward.

Building and dispatching a step's graph costs the host about as much as computing it costs the
device when model and batch are small. A trace of the whole forward is made once
for a shape (rows, room) and replayed: a third less processor time on a model of 4 M parameters
(docs/decisions/). A trace wants fixed shapes, so attention runs over the whole slab under a
mask. Traces are large (some 150 KB a layer), so few are kept, and a shape is traced only
once it has lasted a few steps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from runner.mlx.batch import DecodeBatch

MOST_ROWS = 8
STEADY_STEPS = 4
KEPT_LAYERS = 192

Step = Callable[..., tuple[mx.array, list[mx.array]]]


class TracedKV:
    """One attention layer inside a trace: what the model calls a cache."""

    def __init__(self, keys: mx.array, values: mx.array, begins: mx.array, stop: mx.array) -> None:
        self.keys = keys
        self.values = values
        self.offset = stop - begins
        self._begins = begins
        self._stop = stop

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys = mx.slice_update(self.keys, keys, self._stop, axes=(2,))
        self.values = mx.slice_update(self.values, values, self._stop, axes=(2,))
        return self.keys, self.values

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        columns = mx.arange(self.keys.shape[2])
        mask = (columns >= self._begins[:, None, None, None]) & (columns <= self._stop)
        return mask if window_size is None else mask & (columns > self._stop - window_size)

    @property
    def state(self) -> tuple[mx.array, mx.array]:
        return self.keys, self.values


class TracedDecode:
    """The forwards of small batches of one model whose layers are all slabs."""

    def __init__(self, model: Any, layers: int) -> None:
        self._model = model
        self._most = max(4, KEPT_LAYERS // layers)
        self._steps: OrderedDict[tuple[int, int], Step] = OrderedDict()
        self._shape = (0, 0)
        self._steady = 0

    def logits(self, batch: DecodeBatch) -> mx.array | None:
        """(rows, vocabulary) after `batch.open_step`; None when the shape is not traced."""
        shape = (len(batch), batch.shape.room)
        self._steady = self._steady + 1 if shape == self._shape else 0
        self._shape = shape
        if shape[0] > MOST_ROWS or batch.shape.slots != shape[0]:
            return None
        if shape not in self._steps:
            if self._steady < STEADY_STEPS:
                return None
            self._steps[shape] = self.trace()
            if len(self._steps) > self._most:
                self._steps.popitem(last=False)
        self._steps.move_to_end(shape)
        return self.run(self._steps[shape], batch)

    def trace(self) -> Step:
        """A step that is traced when first called with some shape."""
        return mx.compile(self._step)

    def run(self, step: Step, batch: DecodeBatch) -> mx.array:
        """Compute one step of the batch by `step`, and put its slabs in their place."""
        stop = batch.shape.stop
        begins = [stop if begin < 0 else begin for begin in batch.shape.begins]
        logits, slabs = step(batch.tokens, mx.array(begins), mx.array([stop]), batch.lend_slabs())
        batch.return_slabs(slabs)
        return logits

    def clear(self) -> None:
        self._steps.clear()

    def _step(
        self, tokens: mx.array, begins: mx.array, stop: mx.array, slabs: list[mx.array]
    ) -> tuple[mx.array, list[mx.array]]:
        pairs = zip(slabs[::2], slabs[1::2], strict=True)
        caches = [TracedKV(keys, values, begins, stop) for keys, values in pairs]
        logits = self._model(tokens[:, None], cache=caches)[:, -1]
        return logits, [array for cache in caches for array in cache.state]
