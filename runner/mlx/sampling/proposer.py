# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: the code that all proposers share. A proposer guesses tokens for a loaded model; it
is a draft model, the model's MTP head or its block drafter."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import mlx.core as mx

from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from runner.engine import EngineFacts, Proposal, RowId, SampledToken
from runner.mlx.sampling.batch_sampler import BatchSampler, RowDraw
from runner.mlx.sampling.pending_step import Proposals
from runner.mlx.sampling.row import EngineRow


class Proposer(ABC):
    """Guesses the next tokens of one row at a time, for a model with `vocabulary` tokens. A row
    with its guesses has at most `context_tokens` tokens. `made` has the output tokens of each row.
    `failure`: the error that ended all guesses; empty: there was none. `earlier_peak_bytes`: the
    peak of memory before the last proposal, because the peak of a proposal is measured alone.

    A subclass sets `title`, its name in messages, and `fact`, the field of `EngineFacts` that says
    why it is not used."""

    title: str
    fact: Literal["no_draft_model", "no_mtp", "no_block"]

    def __init__(self, vocabulary: int, context_tokens: int) -> None:
        self.failure = ""
        self.earlier_peak_bytes = 0
        self.vocabulary = vocabulary
        self.made: dict[RowId, list[TokenId]] = {}
        self._context_tokens = context_tokens

    @abstractmethod
    def applied(self, facts: EngineFacts) -> EngineFacts:
        """Return the model's facts with this proposer, whose speed is not measured yet."""

    @abstractmethod
    def measured(
        self, facts: EngineFacts, clock: Callable[[], float], plain_s: float
    ) -> EngineFacts:
        """Measure a guess, and return the model's facts with the cost of a guessed token. The unit
        is a plain step of the model, which takes `plain_s` seconds by this clock."""

    def noted(self, facts: EngineFacts) -> EngineFacts:
        """Return the model's facts. If an error ended the guesses, they say so."""
        why = f"{self.title} failed: {self.failure}"
        is_news = bool(self.failure) and getattr(facts, self.fact) != why
        return replace(facts, **{self.fact: why}) if is_news else facts

    @abstractmethod
    def follows(self, row: RowId) -> bool:
        """Return whether the proposer has the KV of this row."""

    @abstractmethod
    def drop(self) -> None:
        """Free the KV of the row that the proposer follows."""

    @abstractmethod
    def guess(self, row: EngineRow, tokens: Sequence[TokenId], most: int) -> Proposal:
        """Return up to `most` guesses, 1 to 32, of the tokens that follow `tokens`, which are all
        tokens of the row. They are drawn with the row's random keys. The caller fills in
        `peak_bytes`. If it raises an error, no more guesses are made."""

    def take(self, tokens: Iterable[SampledToken]) -> None:
        """Add these new tokens to `made`."""
        for sampled in tokens:
            self.made.setdefault(sampled.row, []).append(sampled.token)

    def forget(self, rows: Iterable[RowId]) -> None:
        """Forget rows that leave the engine, and free their KV."""
        for row in rows:
            self.made.pop(row, None)
            if self.follows(row):
                self.drop()

    def proposals(
        self, rows: Sequence[EngineRow], wanted: Iterable[tuple[RowId, int]]
    ) -> Proposals:
        """Return guesses for the rows in `wanted`, which are pairs (row, most guesses). The last
        tokens of these rows must have been read, and their sampling state written back to them."""
        named = {row.name: row for row in rows}
        return tuple(
            (name, self._proposed(named[name], most)) for name, most in wanted if name in named
        )

    def fail(self, error: Exception) -> None:
        """Make no more guesses, because of this error."""
        self.drop()
        self.failure = f"{type(error).__name__}: {error}"

    def _proposed(self, row: EngineRow, most: int) -> Proposal:
        tokens = (*row.spec.tokens, *self.made.get(row.name, ()))
        is_ready = len(tokens) == row.draw.position and row.prefilled
        if self.failure or not is_ready or len(tokens) + most > self._context_tokens:
            return Proposal()
        self.earlier_peak_bytes = max(self.earlier_peak_bytes, mx.get_peak_memory())
        in_use = mx.get_active_memory()
        mx.reset_peak_memory()
        try:
            proposal = self.guess(row, tokens, most)
        except Exception as error:
            self.fail(error)
            return Proposal()
        return replace(proposal, peak_bytes=max(mx.get_peak_memory() - in_use, 0))


class HiddenProposer(Proposer):
    """A proposer that may read the hidden states of the model's own forwards, row by row. If it
    does not (`reads_hidden`), it gets none."""

    reads_hidden = True

    @abstractmethod
    def prompt(self, row: EngineRow, start: int, hidden: mx.array) -> list[mx.array]:
        """Add the hidden states (1, tokens, width) of a chunk of a row's prompt from the position
        `start` on, and follow the row. Return arrays to evaluate."""

    @abstractmethod
    def add(self, hidden: mx.array) -> list[mx.array]:
        """Add the next hidden states (1, tokens, width) of the followed row. Return arrays to
        evaluate."""


def peak_memory(proposer: Proposer | None) -> int:
    """Return the most bytes that MLX has held since its start, also before the last proposal."""
    earlier = 0 if proposer is None else proposer.earlier_peak_bytes
    return max(mx.get_peak_memory(), earlier)


def guess_sampler(draw: RowDraw, vocabulary: int) -> BatchSampler:
    """Return a sampler that draws guesses in the same way as the row's own tokens: with the same
    random keys, penalties and bias."""
    own = copy.copy(draw)
    own.top = None
    return BatchSampler([own], vocabulary)


def read_guesses(drawn: Sequence[mx.array]) -> tuple[TokenId, ...]:
    """Wait for the device, and return the tokens in these arrays, which have one token each."""
    guesses: list[int] = mx.concatenate(list(drawn)).tolist()  # pyright: ignore[reportAssignmentType]
    return tuple(map(TokenId, guesses))


def greedy_draw(position: int) -> RowDraw:
    """Return the sampling state of a row whose next token is at this position."""
    return RowDraw(Sampling(temperature=0.0), seed=0, position=position)
