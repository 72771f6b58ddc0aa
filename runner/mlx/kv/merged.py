# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `filter` and its kin untyped)
"""Talks to MLX: layers of the decode batch whose KV is in one of mlx-lm's caches, and which cannot
take back tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from runner.mlx.kv.kv_slab import SlabShape


class MergedKV:
    """One layer of the batch whose KV is in one of mlx-lm's batch caches.

    A batch of one row keeps the row's own cache, which is faster and exact.
    """

    def __init__(self) -> None:
        self.cache: Any = None
        self._alone = False

    def put(self, own: Any) -> None:
        """Append one row's cache of this layer as the last slot."""
        if self.cache is None:
            self.cache, self._alone = own, True
            return
        if self._alone:
            self.cache, self._alone = type(own).merge([self.cache, own]), False
            return
        self.cache.extend(type(own).merge([own]))

    def take(self, slot: int) -> Any:
        """Return the cache of one slot: a copy, unless the batch has only one row."""
        return self.cache if self._alone else self.cache.extract(slot)

    def keep(self, slots: Sequence[int]) -> None:
        """Drop all slots except `slots`, which are in ascending order."""
        if not self._alone:
            self.cache.filter(mx.array(list(slots)))

    def saved(self) -> Any:
        """Return a copy of the only row's cache, which later forwards leave as it is. Its arrays
        share their memory with the cache. If other rows have left the batch, the row gets a cache
        of its own again, because batch caches may take no several columns."""
        if not self._alone:
            self.cache, self._alone = self.cache.extract(0), True
        return copy.deepcopy(self.cache)

    def clear(self) -> None:
        self.cache = None

    @property
    def nbytes(self) -> int:
        return 0 if self.cache is None else self.cache.nbytes


class Replay:
    """The tokens that a row must compute again, because the model did not accept its draft as a
    whole; and the state before the draft.

    The row is alone in its batch. `layers` are the layers that cannot be cut, and `shape` the
    positions of all other layers. Without such layers (`trims`), there is nothing to compute again.
    """

    def __init__(self, layers: Sequence[MergedKV], shape: SlabShape) -> None:
        self._layers = layers
        self.trims = not layers
        self._shape = shape
        self._lacking: mx.array | None = None
        self._states: list[Any] = []
        self._inputs: mx.array | None = None
        """All tokens of the step before which `_states` were saved, (1, columns)."""

    @property
    def lag(self) -> int:
        """Return the number of tokens before the row's next input that the layers do not hold."""
        return 0 if self._lacking is None else self._lacking.shape[1]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the saved state."""
        return sum(state.nbytes for state in self._states)

    def before(self, tokens: mx.array) -> mx.array:
        """Return the tokens that a plain step computes, (slots, lag + 1), of which `tokens`,
        (slots,), are the last."""
        own = tokens[:, None]
        return own if self._lacking is None else mx.concatenate([self._lacking, own], axis=1)

    def save(self, inputs: mx.array) -> None:
        """Save the state before a step with a draft that computes `inputs`, (slots, columns)."""
        if self._layers:
            if inputs.shape[0] > 1:
                raise ValueError("drafts of several rows need layers that take back tokens")
            self._states = [layer.saved() for layer in self._layers]
            self._inputs = inputs

    def close(self, count: int) -> int:
        """Record that `count` tokens beyond the lag are the row's, in the step before which the
        state was saved. Return the number of columns that stay valid: all, or none."""
        assert self._inputs is not None, "save"
        inputs, columns = self._inputs, self.lag + count
        self._lacking = None
        if columns == inputs.shape[1]:
            return columns
        self._restore()
        self._lacking = inputs[:, :columns] if columns else None
        return 0

    def until(self, back: int) -> mx.array | None:
        """Return the tokens, (1, columns), to compute so that the row lacks its last `back` ones;
        None if there are none. If it has some of these, its last draft is taken back. The saved
        state is dropped. Raises ValueError if the layers cannot take back so many."""
        if back and self._inputs is not None:  # then nothing is lacking
            self._lacking = self._inputs
            self._shape.stop -= self.lag
            self._restore()
        self.forget()
        if self.lag < back:
            raise ValueError(f"the layers cannot take back {back} tokens")
        if self._lacking is None or self.lag == back:
            return None
        return self._lacking[:, : self.lag - back]

    def advance(self, columns: int) -> None:
        """Record that a forward has computed so many tokens that were lacking."""
        assert self._lacking is not None
        self._shape.close_step(columns)
        self._lacking = self._lacking[:, columns:] if columns < self.lag else None

    def forget(self) -> None:
        """Drop the saved state."""
        self._states, self._inputs = [], None

    def clear(self) -> None:
        """Drop the saved state, and the tokens that are lacking."""
        self.forget()
        self._lacking = None

    def _restore(self) -> None:
        for layer, state in zip(self._layers, self._states, strict=True):
            layer.cache = state
        self.forget()
