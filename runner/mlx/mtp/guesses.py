# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval` untyped)
"""Talks to MLX: guesses the next tokens of a row with the model's MTP head.

The head follows one row. It gets the row's hidden states, position by position, from the forwards
of the model. Its KV of a position needs the token after it, so the last ones wait for their tokens.
If it missed positions of the row, it begins anew after them. Guesses are drawn with the model's
random keys, penalties and bias.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx

from bus.wire.ids import TokenId
from runner.engine import EngineFacts, RowId, SampledToken
from runner.mlx.kv import RowKV, evaluated
from runner.mlx.mtp.block import LoadedHead
from runner.mlx.sampling import BatchSampler, EngineRow, Proposals, RowDraw, greedy_draw

ROOM_TOKENS = 256
"""Room for further tokens of a row."""
MOST_WAITING = 256
"""If more hidden states wait, as while a row decodes plainly, the head computes their KV."""
CHUNK_TOKENS = 512
TRIAL_TOKENS, TRIAL_TIMES = 8, 3


@dataclass(slots=True)
class _Followed:
    """The row that the head follows, and its prompt. The KV has `fed` positions from `start` on,
    and guesses after them. `waiting` are the hidden states of the next `waits` positions."""

    row: RowId
    prompt: tuple[TokenId, ...]
    start: int
    cache: RowKV
    fed: int = 0
    waits: int = 0
    waiting: list[mx.array] = field(default_factory=list[mx.array])

    @property
    def end(self) -> int:
        """Return the first position whose hidden state is not there."""
        return self.start + self.fed + self.waits


class MtpGuesses:
    """Guesses tokens of the rows of a model with `vocabulary` tokens. `failure`: the error that
    ended its guesses; empty: none."""

    def __init__(self, head: LoadedHead, vocabulary: int) -> None:
        self.failure = ""
        self._head = head
        self._vocabulary = vocabulary
        self._made: dict[RowId, list[TokenId]] = {}
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
        """Return the model's facts with the cost of a guessed token, in plain steps of `plain_s`
        seconds by this clock."""
        tokens = [TokenId((3 + 7 * at) % self._vocabulary) for at in range(TRIAL_TOKENS)]
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

    def noted(self, facts: EngineFacts) -> EngineFacts:
        """Return the model's facts, with the error that ended the guesses, if there is one."""
        why = f"the MTP head failed: {self.failure}"
        return replace(facts, no_mtp=why) if self.failure and facts.no_mtp != why else facts

    def take(self, tokens: Iterable[SampledToken]) -> None:
        """Add the new tokens of rows, in order."""
        for sampled in tokens:
            self._made.setdefault(sampled.row, []).append(sampled.token)

    def forget(self, rows: Iterable[RowId]) -> None:
        """Forget rows that leave the engine, and free their KV."""
        for row in rows:
            self._made.pop(row, None)
            if self.follows(row):
                self._followed = None

    def follows(self, row: RowId) -> bool:
        return self._followed is not None and self._followed.row == row

    def prompt(self, row: EngineRow, start: int, hidden: mx.array) -> list[mx.array]:
        """Add the hidden states (1, tokens, width) of a chunk of a row's prompt from the position
        `start` on, and follow the row. Return arrays to evaluate."""
        followed = self._followed
        if self.failure:
            return []
        if followed is None or followed.row != row.name or followed.end != start:
            followed = self._follow(row, start)
        followed.waiting.append(hidden)
        followed.waits += hidden.shape[1]
        return self._caught_up(followed)

    def add(self, hidden: mx.array) -> list[mx.array]:
        """Add the next hidden states (1, tokens, width) of the followed row. Return arrays to
        evaluate."""
        followed = self._followed
        if followed is None or not hidden.shape[1]:
            return []
        followed.waiting.append(hidden)
        followed.waits += hidden.shape[1]
        return [hidden, *(self._caught_up(followed) if followed.waits > MOST_WAITING else ())]

    def proposals(
        self, rows: Sequence[EngineRow], wanted: Iterable[tuple[RowId, int]]
    ) -> Proposals:
        """Return guesses for the `wanted` rows, each with its most tokens. Their last tokens must
        have been read, and their sampling state be their own."""
        named = {row.name: row for row in rows}
        return tuple(
            (name, self._proposed(named[name], most)) for name, most in wanted if name in named
        )

    def _proposed(self, row: EngineRow, most: int) -> tuple[TokenId, ...]:
        tokens = (*row.spec.tokens, *self._made.get(row.name, ()))
        is_ready = len(tokens) == row.draw.position and row.prefilled
        if self.failure or not is_ready or len(tokens) + most > self._head.context_tokens:
            return ()
        followed = self._followed
        if followed is None or followed.row != row.name or followed.end != len(tokens) - 1:
            self._follow(row, len(tokens) - 1)
            return ()
        if not followed.waits:
            return ()
        try:
            out = self._fed(followed, tokens[followed.start + followed.fed + 1 :])
            return self._guesses(followed, out, row.draw, min(most, self._head.depth))
        except Exception as error:
            self._fail(error)
            return ()

    def _follow(self, row: EngineRow, start: int) -> _Followed:
        """Follow a row from the position `start` on."""
        room = max(len(row.spec.tokens) - start, 0) + ROOM_TOKENS
        self._followed = _Followed(row.name, row.spec.tokens, start, RowKV(room))
        return self._followed

    def _caught_up(self, followed: _Followed) -> list[mx.array]:
        """Compute the KV of all waiting positions whose next tokens are there. Return arrays to
        evaluate."""
        tokens = (*followed.prompt, *self._made.get(followed.row, ()))
        tokens = tokens[followed.start + followed.fed + 1 : followed.end + 1]
        if not tokens:
            return []
        try:
            self._fed(followed, tokens)
        except Exception as error:
            self._fail(error)
            return []
        return evaluated([followed.cache])

    def _fail(self, error: Exception) -> None:
        self._followed, self.failure = None, f"{type(error).__name__}: {error}"

    def _fed(self, followed: _Followed, tokens: Sequence[TokenId]) -> mx.array:
        """Compute the KV of as many waiting positions as there are tokens, each with the token
        after it. Return the head's output, unevaluated; the guesses after them are cut off."""
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
        """Return `most` guesses after an output of the head."""
        own = copy.copy(draw)
        own.top = None
        sampler = BatchSampler([own], self._vocabulary)
        drawn: list[mx.array] = []
        while True:
            logits, hidden = self._head.logits(out)
            token = sampler.draw(logits[:, : self._vocabulary]).tokens
            mx.async_eval(token)
            drawn.append(token)
            if len(drawn) == most:
                break
            out = self._head.run(hidden, token[:, None], followed.cache)
        guessed: list[int] = mx.concatenate(drawn).tolist()  # pyright: ignore[reportAssignmentType]
        return tuple(map(TokenId, guessed))
