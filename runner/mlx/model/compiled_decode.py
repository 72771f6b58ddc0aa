"""Talks to MLX: runs small decode batches through a compiled forward.

If model and batch are small, building and dispatching a step's graph costs the host about as much
as computing costs the device. A trace of the whole forward is made once per shape (rows, room) and
replayed. For one row this saves a third of the CPU time on a model of 4 M parameters, an eighth on
30 M. A trace needs fixed shapes, so attention runs over the whole slab under a mask. Traces are
large (some 150 KB per layer), so few are kept, and a shape is traced only after a few steps.
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
"""Three arrays: the number of tokens before each row's next one (rows,), whether the row sees each
column (rows, 1, 1, room), and the column to write (1,)."""
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
    """The forwards of small batches of a model whose layers are all slabs, with the codecs by which
    attention reads them. `tap` keeps their hidden states."""

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
        """Return the logits (rows, vocabulary) of a batch after its `open_step`; None if its shape
        is not traced."""
        shape = (len(batch), batch.shape.room)
        before, steps = self._lasted.get(batch, (shape, -1))
        self._lasted[batch] = shape, steps + 1 if before == shape else 0
        if shape[0] > MOST_ROWS or batch.shape.slots != shape[0]:
            return None
        if shape not in self._steps and self._lasted[batch][1] < STEADY_STEPS:
            return None
        return self.run(self.step_for(batch), batch)

    def step_for(self, batch: DecodeBatch) -> Step:
        """Return the kept function that computes one step of a batch of this shape; a new one is
        traced in its first step."""
        shape = (len(batch), batch.shape.room)
        if shape not in self._steps:
            self._steps[shape] = self.trace()
            if len(self._steps) > self._most:
                self._steps.popitem(last=False)
        self._steps.move_to_end(shape)
        return self._steps[shape]

    def trace(self) -> Step:
        """Return a function that computes one step; MLX traces it on its first call with a
        shape."""
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
        if self._tap is not None:
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
    """A forward that may be able to compute small batches with compiled traces."""

    def traces(self) -> bool:
        """Try out whether traces of the forward give correct results; return whether they do."""
        ...

    def trace(self) -> None:
        """Use traces for small batches from the next step on."""
        ...


class TraceStart:
    """Decides when a forward begins to use traces: at load, or when a child process has compiled
    the kernels that they need."""

    def __init__(
        self, kernels: KernelCache, forward: Traceable, comm: Comm, *, pays: bool, allowed: bool
    ) -> None:
        """Start a child process for missing kernels if that is useful, and start tracing if the
        kernels exist. `pays`: a trace is faster on this rank. `allowed`: all ranks meet the
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
        """Start tracing if the kernels exist. The ranks of a group check after the same steps and
        begin when all of them can. In a tensor group the order of exchanges follows from the graph,
        which a trace may reorder."""
        if not self._looks:
            return
        kernels = self._comm.least(self._kernels.outlook() if self._pays else Outlook.NEVER)
        self._looks = kernels == Outlook.SOON
        if kernels == Outlook.WARM and self._comm.least(self._forward.traces()):
            self._forward.trace()

    def close(self) -> None:
        """End the child process, if one runs."""
        self._kernels.close()
