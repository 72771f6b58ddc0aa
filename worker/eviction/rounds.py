"""When a node's store is looked at, and for how long: rounds, and the purges that clients wait for.

Pure: time arrives as `now`. A round begins when a model was unloaded and when the worker starts. It
goes on while something is too much and what is in use may yet come free. What was refused in a
round is not tried again in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bus.wire.messages.weights import LetGo, PurgeAsked, PurgeState, StoredModel

ROUND_S = 120.0
"""After an unloading what is still held is waited for so long."""
LEASE_S = 10.0
"""Who has not repeated a question for so long waits no longer."""
ENDED_S = 30.0
"""How a purge ended is told for so long."""
MOST_QUESTIONS = 64

Cause = Literal["a model was unloaded", "the worker started", "purged"]


@dataclass(slots=True)
class Round:
    """One look at the store, until what was fetched takes `limit_bytes` at most. `refused` says by
    folder why it was not let go."""

    cause: Cause
    limit_bytes: int
    until_at: float
    refused: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Purge:
    """A round that clients wait for. `heard` says when each question was repeated last."""

    round: Round
    heard: dict[str, float]
    phase: Literal["waiting", "deleting", "done"] = "waiting"
    note: str = ""
    let_go: list[LetGo] = field(default_factory=list[LetGo])
    stays: tuple[StoredModel, ...] = ()
    ended_at: float | None = None

    @property
    def state(self) -> PurgeState:
        """Return how far it is."""
        return PurgeState(
            phase=self.phase,
            note=self.note,
            let_go=tuple(self.let_go),
            stays=self.stays,
            questions=tuple(self.heard),
        )


class StoreRounds:
    """The rounds of one node. `limit_bytes` below 0: none begins by itself."""

    def __init__(self, limit_bytes: int, now: float) -> None:
        self._limit_bytes = limit_bytes
        self._own: Round | None = None
        self.purges: list[Purge] = []
        self.begin("the worker started", now)

    def begin(self, cause: Cause, now: float) -> None:
        """Begin a round, with nothing refused yet."""
        if self._limit_bytes >= 0:
            self._own = Round(cause, self._limit_bytes, now + ROUND_S)

    @property
    def purge(self) -> Purge | None:
        """Return the purge that goes on."""
        return next((one for one in self.purges if one.ended_at is None), None)

    @property
    def current(self) -> Round | None:
        """Return the round that goes on: a purge before others."""
        return self._own if self.purge is None else self.purge.round

    def asked(self, asked: PurgeAsked, now: float) -> None:
        """Take in a client's question: begin a purge, join one, or leave it."""
        known = next((one for one in self.purges if asked.question in one.heard), None)
        if known is not None:
            known.heard[asked.question] = now
            if asked.leaves and known.ended_at is None:
                del known.heard[asked.question]
        elif not asked.leaves:
            self._join(asked.question, now)

    def _join(self, question: str, now: float) -> None:
        if self.purge is None:
            self.purges.append(Purge(Round("purged", 0, now), {question: now}))
        elif len(self.purge.heard) < MOST_QUESTIONS:
            self.purge.heard[question] = now

    def tick(self, now: float) -> None:
        """Forget purges that ended a while ago, and those that no client waits for."""
        for one in self.purges:
            if one.ended_at is None:
                one.heard = {q: at for q, at in one.heard.items() if now - at < LEASE_S}
        self.purges = [
            one
            for one in self.purges
            if (one.heard if one.ended_at is None else now - one.ended_at < ENDED_S)
        ]

    def exhausted(self, stays: tuple[StoredModel, ...], now: float, *, waits: bool) -> None:
        """Take in that nothing more goes now. An own round goes on while something that is in use
        is worth waiting for (`waits`); a purge is done."""
        purge = self.purge
        if purge is not None:
            purge.phase, purge.note, purge.stays, purge.ended_at = "done", "", stays, now
        elif self._own is not None and not (waits and now < self._own.until_at):
            self._own = None
