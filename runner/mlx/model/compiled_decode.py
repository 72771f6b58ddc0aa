"""Talks to MLX: runs small decode batches with compiled forward passes (traces).

If the model and the batch are small, building and dispatching the graph of a step takes about as
long as computing it. So the whole forward pass is compiled once per shape (rows, room of the slab)
into a trace, which later steps replay. For one row, this saves a third of the CPU time with a model
of 4 million parameters, and an eighth with 30 million. A trace needs fixed shapes, so attention
reads the whole slab under a mask. Traces are large (some 150 KB per layer). So only a few are
compiled and kept: those of shapes that last for several steps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from runner.mlx.kv import Codec, DecodeBatch, Parts
from runner.mlx.model.kernels import KernelCache, Outlook
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.ranks.comm import Comm
from runner.mlx.ranks.pipeline_stage import StageModel

MOST_ROWS = 8
STEADY_STEPS = 12
KEPT_LAYERS = 64

Place = tuple[mx.array, mx.array, mx.array]
"""Three arrays: the number of each row's tokens (rows,), the attention mask over the slab's columns
(rows, 1, 1, room), and the column to write (1,)."""
Step = Callable[..., tuple[mx.array, list[Parts], list[mx.array]]]


class CompiledKV:
    """The KV of one attention layer inside a trace; the model uses it as its cache."""

    def __init__(self, parts: Parts, reader: Codec, place: Place) -> None:
        self.parts = parts
        self.offset, self._mask, self._stop = place
        self._reader = reader
        reader.mark(self)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write one column, (rows, heads, 1, width). Return the whole slabs; the mask hides unused
        columns."""
        new = self._reader.encode(keys, values)
        self.parts = tuple(
            mx.slice_update(part, column, self._stop, axes=(2,))
            for part, column in zip(self.parts, new, strict=True)
        )
        return self._reader.fetch(self.parts)

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        """Return the attention mask over all columns of the slab, (rows, 1, 1, room), limited to a
        sliding window if one is given."""
        if window_size is None:
            return self._mask
        return self._mask & (mx.arange(self.parts[0].shape[2]) > self._stop - window_size)


class CompiledDecode:
    """Computes small batches of a model with compiled traces. All layers must be slabs. `readers`
    are the codecs with which attention reads them. `tap` gets the hidden states of each step."""

    def __init__(
        self, model: Any, readers: Sequence[Codec], tap: LastTokenHead | None = None
    ) -> None:
        self._model = model
        self._tap = tap
        self._readers = tuple(readers)
        self._most = max(4, KEPT_LAYERS // len(self._readers))
        self._steps: OrderedDict[tuple[int, int], Step] = OrderedDict()
        self._lasted: dict[DecodeBatch, tuple[tuple[int, int], int]] = {}

    def logits(self, batch: DecodeBatch) -> mx.array | None:
        """Compute a step of a batch, after its `open_step`, with a trace, and return the logits
        (rows, vocabulary). Return None if there is no trace for the batch's shape and none is
        due."""
        shape = (len(batch), batch.shape.room)
        before, steps = self._lasted.get(batch, (shape, -1))
        self._lasted[batch] = shape, steps + 1 if before == shape else 0
        if shape[0] > MOST_ROWS or batch.shape.slots != shape[0]:
            return None
        if shape not in self._steps and self._lasted[batch][1] < STEADY_STEPS:
            return None
        return self.run(self.step_for(batch), batch)

    def step_for(self, batch: DecodeBatch) -> Step:
        """Return the function that computes one step of a batch of this shape. A new function is
        traced when it computes its first step."""
        shape = (len(batch), batch.shape.room)
        if shape not in self._steps:
            self._steps[shape] = self.trace()
            if len(self._steps) > self._most:
                self._steps.popitem(last=False)
        self._steps.move_to_end(shape)
        return self._steps[shape]

    def trace(self) -> Step:
        """Return a function that computes one step. MLX traces it when it is first called with
        arrays of a new shape."""
        return mx.compile(self._step)

    def run(self, step: Step, batch: DecodeBatch) -> mx.array:
        """Compute one step of the batch with the function `step`, and return the logits. The batch
        lends its slabs to the step and gets them back."""
        shape = batch.shape
        stop = shape.stop
        offset = mx.array(shape.lengths())
        seen = shape.valid(0, shape.room)[:, None, None] & (np.arange(shape.room) <= stop)
        mask = mx.array(seen)  # pyright: ignore[reportArgumentType]
        place = (offset, mask, mx.array([stop]))
        part = self._model if isinstance(self._model, StageModel) else None
        given = [] if part is None else part.receive(batch.tokens[:, None])
        out, slabs, hidden = step(batch.tokens, place, given, batch.lend_slabs())
        batch.return_slabs(slabs)
        if self._tap is not None and hidden:
            self._tap.put(hidden)
        return out if part is None else part.hand_on(out)

    def _step(
        self, tokens: mx.array, place: Place, given: list[mx.array], slabs: list[Parts]
    ) -> tuple[mx.array, list[Parts], list[mx.array]]:
        pairs = zip(slabs, self._readers, strict=True)
        caches = [CompiledKV(tuple(parts), reader, place) for parts, reader in pairs]
        if isinstance(self._model, StageModel):
            out = self._model.inner(tokens[:, None], caches, given)
        else:
            out = self._model(tokens[:, None], cache=caches)
        hidden = [] if self._tap is None else self._tap.take_hidden()
        return out[:, -1], [cache.parts for cache in caches], hidden


class Traceable(Protocol):
    """The forward passes of a model, which may be able to use compiled traces for small batches."""

    def traces(self) -> bool:
        """Find out by trial, and return, whether compiled traces give correct results."""
        ...

    def trace(self) -> None:
        """Use traces for small batches from the next step on."""
        ...


class TraceStart:
    """Decides when an engine begins to use compiled traces: at load, or later when a child process
    has compiled the kernels that traces need."""

    def __init__(
        self, kernels: KernelCache, forward: Traceable, comm: Comm, *, pays: bool, allowed: bool
    ) -> None:
        """Start tracing if the kernels exist; otherwise start a child process that compiles them,
        if that is useful. `pays`: a trace is faster on this rank. `allowed`: all ranks meet the
        requirements."""
        self._kernels = kernels
        self._forward = forward
        self._comm = comm
        self._pays = pays
        self._looks = allowed
        if allowed and pays and not kernels.warm:
            kernels.fill()
        self.look()

    def look(self) -> None:
        """Start tracing if the kernels exist. The ranks of a group check this after the same steps,
        and begin together once all of them can. They must, because the graph determines the order
        of a tensor group's exchanges, and a trace may have another order."""
        if not self._looks:
            return
        kernels = self._comm.least(self._kernels.outlook() if self._pays else Outlook.NEVER)
        self._looks = kernels == Outlook.SOON
        if kernels == Outlook.WARM and self._comm.least(self._forward.traces()):
            self._forward.trace()

    def close(self) -> None:
        """End the child process, if one runs."""
        self._kernels.close()
