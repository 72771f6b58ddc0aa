"""Talks to MLX: the protocol of proposers, which guess tokens beside a loaded model. They are a
draft model, and the model's MTP head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from runner.engine import EngineFacts, RowId, SampledToken
from runner.mlx.sampling.pending_step import Proposals
from runner.mlx.sampling.row import EngineRow


class Proposer(Protocol):
    """Guesses the next tokens of one row at a time."""

    def applied(self, facts: EngineFacts) -> EngineFacts:
        """Return the model's facts with this proposer, whose speed is not measured yet."""
        ...

    def measured(
        self, facts: EngineFacts, clock: Callable[[], float], plain_s: float
    ) -> EngineFacts:
        """Return the model's facts with the cost of a guessed token, in plain steps of `plain_s`
        seconds by this clock."""
        ...

    def noted(self, facts: EngineFacts) -> EngineFacts:
        """Return the model's facts, with the error that ended the guesses, if there is one."""
        ...

    def take(self, tokens: Iterable[SampledToken]) -> None:
        """Add the new tokens of rows, in order."""
        ...

    def forget(self, rows: Iterable[RowId]) -> None:
        """Forget rows that leave the engine, and free their KV."""
        ...

    def proposals(
        self, rows: Sequence[EngineRow], wanted: Iterable[tuple[RowId, int]]
    ) -> Proposals:
        """Return guesses for the `wanted` rows, each with its most tokens. Their last tokens must
        have been read, and their sampling state be their own."""
        ...
