# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: guesses the next tokens of a row with a smaller model (the draft model). The large
model (its target) verifies the guesses.

The draft model draws with the row's own random keys, penalties and bias, so that equal
distributions give equal tokens. It keeps the KV of one row: the row for which it guessed last.
Before it guesses again, it computes the tokens that this row has gained since then. After an error
it makes no more guesses; rows are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import mlx.core as mx

from bus.wire.ids import TokenId
from runner.engine import EngineFacts, Proposal, RowId
from runner.mlx.kv import evaluated
from runner.mlx.sampling.batch_sampler import RowDraw
from runner.mlx.sampling.proposer import Proposer, greedy_draw, guess_sampler, read_guesses
from runner.mlx.sampling.row import EngineRow

CHUNK_TOKENS = 512
"""The most tokens that the draft model computes in one forward pass before it guesses."""
ROOM_TOKENS = 256
"""Room in the KV for tokens that a row will gain."""
TRIAL_TOKENS, TRIAL_TIMES = 8, 3


@dataclass(slots=True)
class _Held:
    """The draft model's KV of one row. `fed` are the tokens whose KV is computed. The first `sure`
    of them belong to the row; the rest are guesses. `chunks` were computed before the last ones."""

    row: RowId
    caches: list[Any]
    fed: list[TokenId] = field(default_factory=list[TokenId])
    sure: int = 0
    chunks: int = 0


class DraftSource(Protocol):
    """A loaded draft model. Its KV can be cut, so that wrong guesses can be removed."""

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


class DraftModel(Proposer):
    """Guesses tokens with a draft model, for rows of a target model with `vocabulary` tokens."""

    title, fact = "the draft model", "no_draft_model"

    def __init__(self, source: DraftSource, vocabulary: int) -> None:
        super().__init__(vocabulary, source.context_tokens)
        self._source = source
        self._model = source.model
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
        """Measure a guess, and return the target's facts with the cost of a guessed token. The unit
        is a plain step of the target, which takes `plain_s` seconds by this clock."""
        prompt = tuple(TokenId((3 + 7 * at) % self.vocabulary) for at in range(3 * TRIAL_TOKENS))
        seconds: list[float] = []
        for _ in range(TRIAL_TIMES):
            caches = self._source.new_caches(len(prompt) + ROOM_TOKENS)
            self._feed(caches, prompt[:-1])
            started = clock()
            self._guesses(caches, prompt[-1:], greedy_draw(len(prompt)), TRIAL_TOKENS)
            seconds.append(clock() - started)
        cost = min(seconds) / TRIAL_TOKENS / plain_s
        return replace(facts, draft_token_cost=cost, no_draft_model="")

    def follows(self, row: RowId) -> bool:
        """Return whether the draft model has the KV of this row."""
        return self._held is not None and self._held.row == row

    def drop(self) -> None:
        """Free the KV of the row that the draft model follows."""
        self._held = None

    def guess(self, row: EngineRow, tokens: Sequence[TokenId], most: int) -> Proposal:
        """Return `most` guesses of the tokens that follow `tokens`, which are all tokens of the
        row."""
        held = self._caught_up(row.name, tokens)
        guesses = self._guesses(held.caches, tokens[len(held.fed) :], row.draw, most)
        held.sure = len(tokens)
        held.fed = [*tokens, *guesses[:-1]]
        return Proposal(guesses, len(guesses), held.chunks + len(guesses))

    def _caught_up(self, row: RowId, tokens: Sequence[TokenId]) -> _Held:
        """Return the KV of the row, without wrong guesses and without its last token. At most
        `CHUNK_TOKENS` tokens of the row are still to be computed."""
        held = self._held
        if held is None or held.row != row:
            reserve = len(tokens) + ROOM_TOKENS
            held = self._held = _Held(row, self._source.new_caches(reserve))
        sure, most = held.sure, min(len(held.fed), len(tokens) - 1)
        while sure < most and held.fed[sure] == tokens[sure]:
            sure += 1
        sure = min(sure, most)
        held.fed, held.chunks = held.fed[:sure], 0
        for cache in held.caches:
            cache.offset = sure
        while len(tokens) - len(held.fed) > CHUNK_TOKENS:
            chunk = tokens[len(held.fed) : len(held.fed) + CHUNK_TOKENS]
            self._feed(held.caches, chunk)
            held.fed += chunk
            held.chunks += 1
        return held

    def _feed(self, caches: list[Any], tokens: Sequence[TokenId]) -> None:
        """Compute the KV of these tokens. Their logits are not computed, because MLX is lazy."""
        self._model(mx.array([list(tokens)], mx.int32), cache=caches)
        mx.eval(evaluated(caches))

    def _guesses(
        self, caches: list[Any], tokens: Sequence[TokenId], draw: RowDraw, most: int
    ) -> tuple[TokenId, ...]:
        """Compute `tokens`, the last tokens of a row, and return `most` guesses of the tokens after
        them. The KV of all guesses except the last is computed too."""
        sampler = guess_sampler(draw, self.vocabulary)
        inputs = mx.array([list(tokens)], mx.int32)
        drawn: list[mx.array] = []
        for _ in range(most):
            logits = self._model(inputs, cache=caches)[:, -1]
            token = sampler.draw(_as_wide(logits, self.vocabulary)).tokens
            mx.async_eval(token)
            drawn.append(token)
            inputs = token[:, None]
        return read_guesses(drawn)


def _as_wide(logits: mx.array, vocabulary: int) -> mx.array:
    """Return the draft model's logits, cut or padded to the `vocabulary` of the target, because the
    random numbers of a draw depend on this width. Padded tokens are never drawn."""
    width = logits.shape[-1]
    if width >= vocabulary:
        return logits[:, :vocabulary]
    return mx.pad(logits, [(0, 0), (0, vocabulary - width)], constant_values=-mx.inf)
