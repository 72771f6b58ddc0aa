# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `async_eval` untyped)
"""Talks to MLX: passes the hidden states of the model's forward passes to its MTP head or block
drafter.

The engine calls one of the methods after each forward pass. Without a head or drafter, they do
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import mlx.core as mx

from bus.wire.ids import TokenId
from runner.engine import RowId
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.sampling import EngineRow, HiddenProposer


class HiddenStates:
    """Passes the hidden states of each forward pass to `head`; None: the model has no MTP head."""

    def __init__(self, tap: LastTokenHead) -> None:
        self.tap = tap
        self.head: HiddenProposer | None = None
        self._drafted: dict[RowId, mx.array] = {}

    def use(self, head: HiddenProposer) -> None:
        """From now on, pass the hidden states of each forward pass to this head or drafter."""
        self.head = head
        self.tap.taps = True

    def of_prompts(self, rows: Sequence[tuple[EngineRow, int, int]]) -> list[mx.array]:
        """Take the hidden states of a forward pass over prompt chunks. For each index in its batch,
        `rows` has the row, the position of the chunk's first token, and the number of the chunk's
        tokens. Return arrays to evaluate."""
        arrays: list[mx.array] = []
        for hidden in self.tap.take_hidden():
            for index, (row, start, count) in enumerate(rows):
                if self.head is not None and row.spec.guessed:
                    arrays += self.head.prompt(row, start, hidden[index : index + 1, :count])
        return arrays

    def of_step(self, slots: Iterable[tuple[int, EngineRow]], lag: int = 0) -> list[mx.array]:
        """Take the hidden states of a plain decode step. `slots` has the rows with their slots. The
        first `lag` columns repeat tokens whose hidden states were taken before. Return arrays to
        evaluate."""
        arrays: list[mx.array] = []
        for hidden in self.tap.take_hidden():
            for slot, row in slots:
                if self.head is not None and self.head.follows(row.name):
                    arrays += self.head.add(hidden[slot : slot + 1, lag:])
        return arrays

    def of_drafts(self, slots: Iterable[tuple[int, EngineRow]], lag: int = 0) -> None:
        """Take the hidden states of a step that verifies drafts, until `accept` says which of its
        tokens are valid. The arguments are those of `of_step`."""
        self._drafted = {}
        for hidden in self.tap.take_hidden():
            for slot, row in slots:
                if self.head is not None and self.head.follows(row.name):
                    self._drafted[row.name] = hidden[slot : slot + 1, lag:]

    def discard(self) -> None:
        """Discard the hidden states of a forward pass that only repeats tokens."""
        self.tap.take_hidden()

    def accept(self, made: Mapping[RowId, Sequence[TokenId]]) -> None:
        """After a step that verified drafts, pass on the hidden states of its valid tokens. `made`
        has the new tokens of each row."""
        drafted, self._drafted = self._drafted, {}
        arrays: list[mx.array] = []
        for name, hidden in drafted.items():
            if self.head is not None and self.head.follows(name):
                arrays += self.head.add(hidden[:, : len(made.get(name, ()))])
        if arrays:
            mx.async_eval(arrays)
