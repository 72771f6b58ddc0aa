# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval` untyped)
"""Talks to MLX: guesses the next tokens of a row with the model's MTP head.

The head follows one row at a time. The model's forward passes give it the row's hidden states,
position by position. To compute its KV of a position, the head needs the token after that position.
So the last hidden states wait until their next tokens are known. If the head missed positions of
the row, it starts again after them, without earlier KV. Guesses are drawn with the row's own random
keys, penalties and bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx

from bus.wire.ids import TokenId
from runner.engine import EngineFacts, Proposal, RowId
from runner.mlx.kv import RowKV, evaluated
from runner.mlx.mtp.block import LoadedHead
from runner.mlx.sampling import (
    EngineRow,
    HiddenProposer,
    RowDraw,
    greedy_draw,
    guess_sampler,
    read_guesses,
)

ROOM_TOKENS = 256
"""Room in the head's KV for tokens that a row will gain."""
MOST_WAITING = 256
"""If more hidden states than this wait, the head computes their KV. They collect while the row
decodes without guesses."""
CHUNK_TOKENS = 512
TRIAL_TOKENS, TRIAL_TIMES = 8, 3


@dataclass(slots=True)
class _Followed:
    """The row that the head follows, with its prompt. `cache` has the KV of `fed` positions of the
    row from `start` on, followed by the KV of guesses. `waiting` are the hidden states of the next
    `waits` positions, whose KV is not computed yet."""

    row: RowId
    prompt: tuple[TokenId, ...]
    start: int
    cache: RowKV
    fed: int = 0
    waits: int = 0
    waiting: list[mx.array] = field(default_factory=list[mx.array])

    @property
    def end(self) -> int:
        """Return the first position whose hidden state the head has not received."""
        return self.start + self.fed + self.waits


class MtpGuesses(HiddenProposer):
    """Guesses tokens with an MTP head, for one row of the model at a time."""

    title, fact = "the MTP head", "no_mtp"

    def __init__(self, head: LoadedHead, vocabulary: int) -> None:
        super().__init__(vocabulary, head.context_tokens)
        self._head = head
        self._followed: _Followed | None = None

    def applied(self, facts: EngineFacts) -> EngineFacts:
        """Return the model's facts with this head, whose speed is not measured yet."""
        return replace(
            facts,
            weights_bytes=facts.weights_bytes + self._head.weights_bytes,
            draft_kv_bytes_per_token=self._head.kv_bytes_per_token,
            draft_depth=self._head.depth,
            no_mtp="the MTP head's speed was not measured",
        )

    def measured(
        self, facts: EngineFacts, clock: Callable[[], float], plain_s: float
    ) -> EngineFacts:
        """Measure a guess, and return the model's facts with the cost of a guessed token. The unit
        is a plain step, which takes `plain_s` seconds by this clock."""
        tokens = [TokenId((3 + 7 * at) % self.vocabulary) for at in range(TRIAL_TOKENS)]
        hidden = self._head.tap.embedded(mx.array([tokens], mx.int32))
        seconds: list[float] = []
        for _ in range(TRIAL_TIMES):
            followed = _Followed(RowId(0), (), 0, RowKV(ROOM_TOKENS), waits=len(tokens))
            followed.waiting = [hidden]
            out = self._fed(followed, tokens)
            mx.eval(out)
            started = clock()
            self._guesses(followed, out, greedy_draw(len(tokens)), TRIAL_TOKENS)
            seconds.append(clock() - started)
        cost = min(seconds) / TRIAL_TOKENS / plain_s
        return replace(facts, draft_token_cost=cost, no_mtp="")

    def follows(self, row: RowId) -> bool:
        """Return whether the head has the KV of this row."""
        return self._followed is not None and self._followed.row == row

    def drop(self) -> None:
        """Free the KV of the row that the head follows."""
        self._followed = None

    def prompt(self, row: EngineRow, start: int, hidden: mx.array) -> list[mx.array]:
        """Follow the row, and take the hidden states (1, tokens, width) of a chunk of its prompt
        that begins at the position `start`. Return arrays to evaluate."""
        followed = self._followed
        if self.failure:
            return []
        if followed is None or followed.row != row.name or followed.end != start:
            followed = self._follow(row, start)
        followed.waiting.append(hidden)
        followed.waits += hidden.shape[1]
        return self._caught_up(followed)

    def add(self, hidden: mx.array) -> list[mx.array]:
        """Take the next hidden states (1, tokens, width) of the followed row. Return arrays to
        evaluate."""
        followed = self._followed
        if followed is None or not hidden.shape[1]:
            return []
        followed.waiting.append(hidden)
        followed.waits += hidden.shape[1]
        return [hidden, *(self._caught_up(followed) if followed.waits > MOST_WAITING else ())]

    def guess(self, row: EngineRow, tokens: Sequence[TokenId], most: int) -> Proposal:
        """Return up to `most` guesses of the tokens that follow `tokens`, which are all tokens of
        the row. If the head has missed positions of the row, return none, and follow it from now
        on."""
        followed = self._followed
        if followed is None or followed.row != row.name or followed.end != len(tokens) - 1:
            self._follow(row, len(tokens) - 1)
            return Proposal()
        if not followed.waits:
            return Proposal()
        new = tokens[followed.start + followed.fed + 1 :]
        out = self._fed(followed, new)
        guesses = self._guesses(followed, out, row.draw, min(most, self._head.depth))
        chunks = -(-len(new) // CHUNK_TOKENS)  # the last one gives the first guess
        return Proposal(guesses, len(guesses), chunks + len(guesses) - 1)

    def _follow(self, row: EngineRow, start: int) -> _Followed:
        """Follow a row from the position `start` on."""
        room = max(len(row.spec.tokens) - start, 0) + ROOM_TOKENS
        self._followed = _Followed(row.name, row.spec.tokens, start, RowKV(room))
        return self._followed

    def _caught_up(self, followed: _Followed) -> list[mx.array]:
        """Compute the KV of all waiting positions whose next tokens are known. Return arrays to
        evaluate."""
        tokens = (*followed.prompt, *self.made.get(followed.row, ()))
        tokens = tokens[followed.start + followed.fed + 1 : followed.end + 1]
        if not tokens:
            return []
        try:
            self._fed(followed, tokens)
        except Exception as error:
            self.fail(error)
            return []
        return evaluated([followed.cache])

    def _fed(self, followed: _Followed, tokens: Sequence[TokenId]) -> mx.array:
        """Compute the KV of the first waiting positions; `tokens` are the tokens after each of
        them. The KV of earlier guesses is removed. Return the head's output, unevaluated."""
        followed.cache.offset = followed.fed
        hidden = mx.concatenate(followed.waiting, axis=1)
        out = hidden
        for first in range(0, len(tokens), CHUNK_TOKENS):
            part = tokens[first : first + CHUNK_TOKENS]
            out = self._head.run(hidden[:, first : first + len(part)], part, followed.cache)
        rest = hidden[:, len(tokens) :]
        followed.fed += len(tokens)
        followed.waits = rest.shape[1]
        followed.waiting = [rest] if followed.waits else []
        return out

    def _guesses(
        self, followed: _Followed, out: mx.array, draw: RowDraw, most: int
    ) -> tuple[TokenId, ...]:
        """Return `most` guesses. The first one is drawn from the last token of the head's output
        `out`, and each further one from the head's output for the guess before it."""
        sampler = guess_sampler(draw, self.vocabulary)
        drawn: list[mx.array] = []
        while True:
            logits, hidden = self._head.logits(out)
            token = sampler.draw(logits[:, : self.vocabulary]).tokens
            mx.async_eval(token)
            drawn.append(token)
            if len(drawn) == most:
                break
            out = self._head.run(hidden, token[:, None], followed.cache)
        return read_guesses(drawn)
