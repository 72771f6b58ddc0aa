# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval` untyped)
"""Talks to MLX: guesses the next tokens of a row with a block drafter.

It needs the row's last tokens, and the target's hidden states at the positions before them. These
come from the forwards of the model. It keeps those of one row, the newest, and at most twice the
window. If it missed positions of the row, it begins anew after them. Nothing else is kept: the
context is computed again for each block, so a block never depends on earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx

from bus.wire.ids import TokenId
from runner.engine import EngineFacts, Proposal, RowId
from runner.mlx.mtp.block_files import LoadedBlock
from runner.mlx.sampling import (
    EngineRow,
    HiddenProposer,
    RowDraw,
    greedy_draw,
    guess_sampler,
    read_guesses,
)

TRIAL_TIMES = 3


@dataclass(slots=True)
class _Followed:
    """The row that the drafter follows. `hidden` are its hidden states at the `count` positions
    before `end`."""

    row: RowId
    end: int
    count: int = 0
    hidden: list[mx.array] = field(default_factory=list[mx.array])


class BlockGuesses(HiddenProposer):
    """Guesses tokens of the rows of a model with `vocabulary` tokens."""

    title, fact = "the block drafter", "no_block"

    def __init__(self, block: LoadedBlock, vocabulary: int) -> None:
        super().__init__(vocabulary, block.context_tokens)
        self.reads_hidden = block.shape.reads_hidden
        self._block = block
        self._followed: _Followed | None = None

    def applied(self, facts: EngineFacts) -> EngineFacts:
        """Return the model's facts with this drafter, whose speed is not measured yet."""
        own = self._block
        return replace(
            facts,
            weights_bytes=facts.weights_bytes + own.weights_bytes + own.shape.context_bytes,
            draft_depth=own.shape.block_length,
            no_block="the block drafter's speed was not measured",
        )

    def measured(
        self, facts: EngineFacts, clock: Callable[[], float], plain_s: float
    ) -> EngineFacts:
        """Return the model's facts with the cost of a whole block, in plain steps of `plain_s`
        seconds by this clock."""
        shape = self._block.shape
        tokens = [TokenId((3 + 7 * at) % self.vocabulary) for at in range(shape.window + 1)]
        hidden = self._embedded(tokens[:-1]) if self.reads_hidden else None
        seconds: list[float] = []
        for _ in range(TRIAL_TIMES):
            started = clock()
            self._guesses(tokens[1:], hidden, greedy_draw(len(tokens)), shape.block_length)
            seconds.append(clock() - started)
        return replace(facts, draft_block_cost=min(seconds) / plain_s, no_block="")

    def follows(self, row: RowId) -> bool:
        """Return whether the drafter has hidden states of this row."""
        return self._followed is not None and self._followed.row == row

    def drop(self) -> None:
        """Free the hidden states of the row."""
        self._followed = None

    def prompt(self, row: EngineRow, start: int, hidden: mx.array) -> list[mx.array]:
        """Add the last hidden states of a chunk (1, tokens, width) of a row's prompt from the
        position `start` on, and follow the row. Return arrays to evaluate."""
        followed = self._followed
        if self.failure:
            return []
        if followed is None or followed.row != row.name or followed.end != start:
            self._followed = _Followed(row.name, start)
        return self.add(hidden)

    def add(self, hidden: mx.array) -> list[mx.array]:
        """Add the next hidden states (1, tokens, width) of the followed row. Return arrays to
        evaluate."""
        followed, window = self._followed, self._block.shape.window
        if followed is None or not hidden.shape[1]:
            return []
        followed.end += hidden.shape[1]
        followed.hidden.append(hidden[:, -window:])
        followed.count += min(hidden.shape[1], window)
        if followed.count > 2 * window:
            # contiguous, so that the rest of a long chunk is freed
            followed.hidden = [mx.contiguous(_joined(followed.hidden)[:, -window:])]
            followed.count = window
        return [followed.hidden[-1]]

    def guess(self, row: EngineRow, tokens: Sequence[TokenId], most: int) -> Proposal:
        """Return up to `most` guesses after all tokens of a row; none if the drafter has no hidden
        state of the token before the last."""
        shape, hidden, count = self._block.shape, None, min(self._block.shape.window, len(tokens))
        if self.reads_hidden:
            followed = self._followed
            if followed is None or followed.row != row.name or followed.end != len(tokens) - 1:
                self._followed = _Followed(row.name, len(tokens) - 1)
                return Proposal()
            count = min(shape.window, followed.count)
            if not count:
                return Proposal()
            hidden = _joined(followed.hidden)[:, -count:]
        return self._guesses(tokens[-count:], hidden, row.draw, min(most, shape.block_length))

    def _guesses(
        self, tokens: Sequence[TokenId], hidden: mx.array | None, draw: RowDraw, most: int
    ) -> Proposal:
        """Return `most` guesses after the row's last tokens, with the hidden states (1, tokens,
        width) one position before each. Each pass settles equally many tokens of a whole block."""
        shape, network = self._block.shape, self._block.network
        sampler = guess_sampler(draw, self.vocabulary)
        context = network.context(self._embedded(tokens), hidden)
        per_pass = -(-shape.block_length // shape.steps)
        drawn: list[mx.array] = []
        passes = 0
        while len(drawn) < most:
            settled = None
            if drawn:
                settled = self._block.tap.embedded(mx.concatenate(drawn)[None])
            first, end = len(drawn), min(len(drawn) + per_pass, most)
            out = network(context, settled, shape.block_length)[:, first:end]
            logits = self._block.tap.projected(out)[0, :, : self.vocabulary]
            drawn += [sampler.draw(logits[at : at + 1]).tokens for at in range(end - first)]
            passes += 1
        return Proposal(read_guesses(drawn), passes, passes)

    def _embedded(self, tokens: Sequence[TokenId]) -> mx.array:
        return self._block.tap.embedded(mx.array([list(tokens)], mx.int32))


def _joined(hidden: list[mx.array]) -> mx.array:
    return hidden[0] if len(hidden) == 1 else mx.concatenate(hidden, axis=1)
