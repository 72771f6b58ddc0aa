# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `async_eval` untyped)
"""Talks to MLX: hands the hidden states of the model's forwards to its MTP head.

Each method follows one forward of the model. Without a head, none of them does anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import mlx.core as mx

from bus.wire.ids import TokenId
from runner.engine import RowId
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.mtp.guesses import MtpGuesses
from runner.mlx.sampling import EngineRow


class HiddenStates:
    """The hidden states of the last forward. `head` reads them; None: there is no head."""

    def __init__(self, tap: LastTokenHead) -> None:
        self.tap = tap
        self.head: MtpGuesses | None = None
        self._drafted: dict[RowId, mx.array] = {}

    def use(self, head: MtpGuesses) -> None:
        """Give this head the hidden states of each forward from now on."""
        self.head = head
        self.tap.taps = True

    def of_prompts(self, rows: Sequence[tuple[EngineRow, int, int]]) -> list[mx.array]:
        """Take a forward of chunks of prompts: by index of the batch, a row, the position of its
        first token, and the number of its tokens. Return arrays to evaluate."""
        arrays: list[mx.array] = []
        for hidden in self.tap.take_hidden():
            for index, (row, start, count) in enumerate(rows):
                if self.head is not None and row.spec.guessed:
                    arrays += self.head.prompt(row, start, hidden[index : index + 1, :count])
        return arrays

    def of_step(self, slots: Iterable[tuple[int, EngineRow]], lag: int = 0) -> list[mx.array]:
        """Take a forward that gives each row one token. Its first `lag` columns repeat tokens whose
        hidden states were taken before. Return arrays to evaluate."""
        arrays: list[mx.array] = []
        for hidden in self.tap.take_hidden():
            for slot, row in slots:
                if self.head is not None and self.head.follows(row.name):
                    arrays += self.head.add(hidden[slot : slot + 1, lag:])
        return arrays

    def of_drafts(self, slots: Iterable[tuple[int, EngineRow]], lag: int = 0) -> None:
        """Take a forward that verifies drafts; `accept` says which of its tokens count. Its first
        `lag` columns repeat earlier ones, as in `of_step`."""
        self._drafted = {}
        for hidden in self.tap.take_hidden():
            for slot, row in slots:
                if self.head is not None and self.head.follows(row.name):
                    self._drafted[row.name] = hidden[slot : slot + 1, lag:]

    def discard(self) -> None:
        """Discard the hidden states of a forward that only repeats tokens."""
        self.tap.take_hidden()

    def accept(self, made: Mapping[RowId, Sequence[TokenId]]) -> None:
        """Keep the hidden states from which the new tokens of rows were drawn."""
        drafted, self._drafted = self._drafted, {}
        arrays: list[mx.array] = []
        for name, hidden in drafted.items():
            if self.head is not None and self.head.follows(name):
                arrays += self.head.add(hidden[:, : len(made.get(name, ()))])
        if arrays:
            mx.async_eval(arrays)
