# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `filter` and its kin untyped)
"""Talks to MLX: layers of the decode batch that use mlx-lm's own caches (rotating windows,
recurrent states). Such layers cannot remove the tokens of a rejected draft."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from runner.mlx.kv.kv_slab import SlabShape


class MergedKV:
    """A layer of the decode batch that uses one of mlx-lm's batch caches.

    A batch of one row uses the row's own cache instead, which is faster and gives exactly the
    result of a row alone.
    """

    def __init__(self) -> None:
        self.cache: Any = None
        self._alone = False

    def put(self, own: Any) -> None:
        """Add a row's cache of this layer, as the last slot."""
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
        """Return a copy of the only row's cache. The copy shares memory with the cache, but later
        forward passes do not change it. If other rows were in the batch before, the row first gets
        its own cache again, because batch caches may not accept several columns at once."""
        if not self._alone:
            self.cache, self._alone = self.cache.extract(0), True
        return copy.deepcopy(self.cache)

    def clear(self) -> None:
        self.cache = None

    @property
    def nbytes(self) -> int:
        return 0 if self.cache is None else self.cache.nbytes


class Replay:
    """Restores layers that cannot be cut, after the model did not accept a whole draft. It keeps
    the state before the draft, and the accepted tokens that must be computed again.

    The row is alone in its batch. `layers` are the layers that cannot be cut; `shape` has the
    positions of all other layers. If all layers can be cut (`trims`), no token is computed again.
    """

    def __init__(self, layers: Sequence[MergedKV], shape: SlabShape) -> None:
        self._layers = layers
        self.trims = not layers
        self._shape = shape
        self._lacking: mx.array | None = None
        self._states: list[Any] = []
        self._inputs: mx.array | None = None
        """The input tokens of the step before which `_states` were saved, (1, columns)."""

    @property
    def lag(self) -> int:
        """Return the number of the row's tokens that must be computed again, before its next
        input."""
        return 0 if self._lacking is None else self._lacking.shape[1]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the saved state."""
        return sum(state.nbytes for state in self._states)

    def before(self, tokens: mx.array) -> mx.array:
        """Return the input tokens of a step without drafts, (slots, lag + 1). `tokens`, (slots,),
        are the rows' next inputs, which come last."""
        own = tokens[:, None]
        return own if self._lacking is None else mx.concatenate([self._lacking, own], axis=1)

    def save(self, inputs: mx.array) -> None:
        """Save the state of the layers before a step that verifies a draft. `inputs`, (slots,
        columns), are the tokens that the step computes."""
        if self._layers:
            if inputs.shape[0] > 1:
                raise ValueError("drafts of several rows require layers that can be cut")
            self._states = [layer.saved() for layer in self._layers]
            self._inputs = inputs

    def close(self, count: int) -> int:
        """Record that, of the step before which the state was saved, the row keeps the first
        `count` tokens beyond the lag. If these are not all, restore the state. Return the number of
        columns that stay valid: all or none."""
        assert self._inputs is not None, "close was called before save"
        inputs, columns = self._inputs, self.lag + count
        self._lacking = None
        if columns == inputs.shape[1]:
            return columns
        self._restore()
        self._lacking = inputs[:, :columns] if columns else None
        return 0

    def until(self, back: int) -> mx.array | None:
        """Return the tokens, (1, columns), that must be computed so that the layers hold all tokens
        of the row except the last `back`; None if there are none. If the layers hold too many
        tokens, the step with the last draft is undone first. The saved state is dropped. Raises
        ValueError if even then the layers hold too many."""
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
        """Record that a forward pass has computed the first `columns` tokens of the lag."""
        assert self._lacking is not None
        self._shape.close_step(columns)
        self._lacking = self._lacking[:, columns:] if columns < self.lag else None

    def forget(self) -> None:
        """Drop the saved state."""
        self._states, self._inputs = [], None

    def clear(self) -> None:
        """Drop the saved state, and the tokens that must be computed again."""
        self.forget()
        self._lacking = None

    def _restore(self) -> None:
        for layer, state in zip(self._layers, self._states, strict=True):
            layer.cache = state
        self.forget()
