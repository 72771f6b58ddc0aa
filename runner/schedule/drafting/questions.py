"""Asks a proposer in another runner for drafts, and passes its answers to the rows.

Pure. Each token of a row is sent only once: a question has the tokens that the proposer lacks, and
says how many it has. The number of a question is also in its answer. At most `MOST_OPEN` questions
are open. While there is no proposer, no question is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

from bus.wire.data_frames import pack_ids
from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from bus.wire.proposals import PROPOSE_S, Propose
from runner.engine import RowId
from runner.schedule.drafting.turns import DraftTurns

MOST_OPEN = 8


@dataclass(frozen=True, slots=True)
class AskingRow:
    """A row that may get a draft now: its tokens (`prompt` and `made`), and the seed and settings
    with which they are sampled. A draft can be of use for at most `left` more tokens."""

    row: RowId
    turns: DraftTurns
    prompt: Sequence[TokenId]
    made: Sequence[TokenId]
    seed: int
    sampling: Sampling
    left: int


@dataclass(slots=True)
class RemoteQuestions:
    """The questions of all rows of one runner. `vocabulary`: every token id of its model is smaller
    than this. `rows` returns the rows that may get drafts now, and `live` has all rows in the
    engine. `why_not`: why there is no proposer; empty if there is one. `count` questions were asked
    since the load, and `useful` of their drafts arrived in time."""

    vocabulary: int
    live: Container[RowId]
    rows: Callable[[], Iterable[AskingRow]]
    why_not: str = "the model's card names no draft model"
    count: int = 0
    useful: int = 0
    _open: dict[int, tuple[RowId, DraftTurns]] = field(
        default_factory=dict[int, tuple[RowId, DraftTurns]]
    )
    _sent: dict[RowId, int] = field(default_factory=dict[RowId, int])
    """How many tokens of each row the proposer has."""

    def use(self, why_not: str) -> None:
        """Ask a proposer from now on; if `why_not` says why there is none, ask nothing. In both
        cases, open questions get no draft, and a row's next question has all its tokens."""
        self.why_not = why_not
        for number in tuple(self._open):
            self.refuse(number, 0)
        self._sent.clear()

    def due(self) -> list[Propose]:
        """Return the questions to send now."""
        questions: list[Propose] = []
        for row in () if self.why_not else self.rows():
            remote = row.turns.remote
            if remote is None or len(self._open) >= MOST_OPEN:
                continue
            wish = remote.wish(row.left)
            if wish is None:
                continue
            remote.order(wish)
            self._forget(row.row)
            self.count += 1
            self._open[self.count] = row.row, row.turns
            length = len(row.prompt) + len(row.made)
            base = min(self._sent.get(row.row, 0), length)
            self._sent[row.row] = length
            question = Propose(
                number=self.count,
                row=row.row,
                base=base,
                tokens=pack_ids((*_tokens(row, base), *wish.presumed)),
                prompt=len(row.prompt),
                length=wish.length,
                steps=0,
                seed=row.seed,
                sampling=row.sampling,
                remaining_ms=int(PROPOSE_S * 1000),
            )
            questions.append(question)
        return questions

    def ended_rows(self) -> list[RowId]:
        """Return the rows that have left the engine, so that the proposer can drop their tokens.
        Each row is returned once."""
        gone = [row for row in self._sent if row not in self.live]
        for row in gone:
            del self._sent[row]
            self._forget(row)
        return gone

    def arrive(self, number: int, tokens: Sequence[TokenId]) -> None:
        """Pass the draft of question `number` to its row. Drop it if that question is no longer
        open or its row has ended."""
        row, turns = self._open.pop(number, (None, None))
        if row is not None and turns is not None and row in self.live:
            self.useful += turns.arrived(tokens[: _valid(tokens, self.vocabulary)])

    def refuse(self, number: int, has: int | None) -> None:
        """Note that question `number` gets no draft. If the proposer only lacked earlier tokens,
        `has` says how many it has, and the next question sends the others. If `has` is None, the
        row asks no proposer for some tokens."""
        row, turns = self._open.pop(number, (None, None))
        if row is None or turns is None or turns.remote is None:
            return
        if has is None:
            turns.remote.rest()
            return
        if row in self._sent:
            self._sent[row] = max(min(self._sent[row], has), 0)
        turns.remote.drop()

    def _forget(self, row: RowId) -> None:
        """Expect no answer to earlier questions of this row."""
        for number in [number for number, (other, _) in self._open.items() if other == row]:
            del self._open[number]


def _tokens(row: AskingRow, start: int) -> Sequence[TokenId]:
    """Return the row's tokens from number `start` on."""
    if start >= len(row.prompt):
        return row.made[start - len(row.prompt) :]
    return (*row.prompt[start:], *row.made)


def _valid(tokens: Sequence[TokenId], vocabulary: int) -> int:
    """Return how many tokens come before the first unknown token."""
    for at, token in enumerate(tokens):
        if not 0 <= token < vocabulary:
            return at
    return len(tokens)
