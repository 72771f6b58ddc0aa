# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: a smaller model that guesses the next tokens of a row, for its target to verify.

It draws with the target's random keys, penalties and bias, so that equal distributions give equal
tokens. It keeps the KV of the row for which it guessed last. Before it guesses, it computes the
tokens that the row has gained since then. An error ends its guesses, and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import mlx.core as mx

from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from runner.engine import EngineFacts, RowId, SampledToken
from runner.mlx.kv import evaluated
from runner.mlx.sampling.batch_sampler import BatchSampler, RowDraw
from runner.mlx.sampling.pending_step import Proposals
from runner.mlx.sampling.row import EngineRow

CHUNK_TOKENS = 512
"""The longest chunk in which it computes tokens that a row has gained."""
ROOM_TOKENS = 256
"""Room for further tokens of a row."""
TRIAL_TOKENS, TRIAL_TIMES = 8, 3


@dataclass(slots=True)
class _Held:
    """The KV of one row. `fed` are the computed tokens; the first `sure` are the row's own."""

    row: RowId
    caches: list[Any]
    fed: list[TokenId] = field(default_factory=list[TokenId])
    sure: int = 0


class DraftSource(Protocol):
    """A loaded draft model, whose KV can be cut back."""

    @property
    def model(self) -> Any: ...

    @property
    def weights_bytes(self) -> int: ...

    @property
    def kv_bytes_per_token(self) -> int: ...

    @property
    def context_tokens(self) -> int: ...

    def new_caches(self, reserve: int) -> list[Any]:
        """Return empty caches of a row, one per layer, with room for `reserve` tokens."""
        ...


class DraftModel:
    """Guesses tokens of the rows of a target with `vocabulary` tokens. `failure`: the error that
    ended its guesses; empty: none."""

    def __init__(self, source: DraftSource, vocabulary: int) -> None:
        self.failure = ""
        self._source = source
        self._model = source.model
        self._vocabulary = vocabulary
        self._made: dict[RowId, list[TokenId]] = {}
        self._held: _Held | None = None

    def applied(self, facts: EngineFacts) -> EngineFacts:
        """Return the target's facts with this draft model, whose speed is not measured yet."""
        return replace(
            facts,
            weights_bytes=facts.weights_bytes + self._source.weights_bytes,
            draft_kv_bytes_per_token=self._source.kv_bytes_per_token,
            no_draft_model="the draft model's speed was not measured",
        )

    def measured(
        self, facts: EngineFacts, clock: Callable[[], float], plain_s: float
    ) -> EngineFacts:
        """Return the target's facts with the cost of a guessed token, in plain steps of `plain_s`
        seconds by this clock."""
        prompt = tuple(TokenId((3 + 7 * at) % self._vocabulary) for at in range(3 * TRIAL_TOKENS))
        seconds: list[float] = []
        for _ in range(TRIAL_TIMES):
            caches = self._source.new_caches(len(prompt) + ROOM_TOKENS)
            self._feed(caches, prompt[:-1])
            started = clock()
            self._guesses(caches, prompt[-1:], greedy_draw(len(prompt)), TRIAL_TOKENS)
            seconds.append(clock() - started)
        cost = min(seconds) / TRIAL_TOKENS / plain_s
        return replace(facts, draft_token_cost=cost, no_draft_model="")

    def noted(self, facts: EngineFacts) -> EngineFacts:
        """Return the target's facts, with the error that ended the guesses, if there is one."""
        why = f"the draft model failed: {self.failure}"
        is_news = bool(self.failure) and facts.no_draft_model != why
        return replace(facts, no_draft_model=why) if is_news else facts

    def take(self, tokens: Iterable[SampledToken]) -> None:
        """Add the new tokens of rows, in order."""
        for sampled in tokens:
            self._made.setdefault(sampled.row, []).append(sampled.token)

    def forget(self, rows: Iterable[RowId]) -> None:
        """Forget rows that leave the engine, and free their KV."""
        for row in rows:
            self._made.pop(row, None)
            if self._held is not None and self._held.row == row:
                self._held = None

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
        if self.failure or not is_ready or len(tokens) + most > self._source.context_tokens:
            return ()
        try:
            held = self._caught_up(row.name, tokens)
            guesses = self._guesses(held.caches, tokens[len(held.fed) :], row.draw, most)
        except Exception as error:
            self._held, self.failure = None, f"{type(error).__name__}: {error}"
            return ()
        held.sure = len(tokens)
        held.fed = [*tokens, *guesses[:-1]]
        return guesses

    def _caught_up(self, row: RowId, tokens: Sequence[TokenId]) -> _Held:
        """Return the row's KV, of at most all of its tokens but the last; wrong guesses are cut
        off."""
        held = self._held
        if held is None or held.row != row:
            reserve = len(tokens) + ROOM_TOKENS
            held = self._held = _Held(row, self._source.new_caches(reserve))
        sure, most = held.sure, min(len(held.fed), len(tokens) - 1)
        while sure < most and held.fed[sure] == tokens[sure]:
            sure += 1
        sure = min(sure, most)
        held.fed = held.fed[:sure]
        for cache in held.caches:
            cache.offset = sure
        while len(tokens) - len(held.fed) > CHUNK_TOKENS:
            chunk = tokens[len(held.fed) : len(held.fed) + CHUNK_TOKENS]
            self._feed(held.caches, chunk)
            held.fed += chunk
        return held

    def _feed(self, caches: list[Any], tokens: Sequence[TokenId]) -> None:
        """Compute the KV of tokens. MLX is lazy, so no logits are computed."""
        self._model(mx.array([list(tokens)], mx.int32), cache=caches)
        mx.eval(evaluated(caches))

    def _guesses(
        self, caches: list[Any], tokens: Sequence[TokenId], draw: RowDraw, most: int
    ) -> tuple[TokenId, ...]:
        """Return `most` guesses after these tokens. All but the last are computed, too."""
        own = copy.copy(draw)
        own.top = None
        sampler = BatchSampler([own], self._vocabulary)
        inputs = mx.array([list(tokens)], mx.int32)
        drawn: list[mx.array] = []
        for _ in range(most):
            logits = self._model(inputs, cache=caches)[:, -1]
            token = sampler.draw(_as_wide(logits, self._vocabulary)).tokens
            mx.async_eval(token)
            drawn.append(token)
            inputs = token[:, None]
        guessed: list[int] = mx.concatenate(drawn).tolist()  # pyright: ignore[reportAssignmentType]
        return tuple(map(TokenId, guessed))


def greedy_draw(position: int) -> RowDraw:
    """Return the sampling state of a row whose next token is at this position."""
    return RowDraw(Sampling(temperature=0.0), seed=0, position=position)


def _as_wide(logits: mx.array, vocabulary: int) -> mx.array:
    """Return logits (1, draft model's vocabulary) in the target's width, because the random numbers
    of a position depend on it. Tokens that the draft model lacks are never drawn."""
    width = logits.shape[-1]
    if width >= vocabulary:
        return logits[:, :vocabulary]
    return mx.pad(logits, [(0, 0), (0, vocabulary - width)], constant_values=-mx.inf)
