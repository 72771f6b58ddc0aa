"""When and for how long a node's store is cleaned: rounds, and purges that clients wait for.

Pure: time arrives as `now`. A round is one cleaning. It begins when a model was unloaded and when
the worker starts. It lasts while the store is too large and a model in use may soon become idle. If
the deletion of a model is refused, the model is not tried again in that round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bus.wire.messages.weights import LetGo, PurgeAsked, PurgeState, StoredModel

ROUND_S = 120.0
"""After a model is unloaded, a round of deletions waits this many seconds for models that are still
in use."""
LEASE_S = 10.0
"""A client that has not repeated its purge request for this long counts as disconnected."""
ENDED_S = 30.0
"""The result of a purge (a round that a client asked for) is kept this many seconds."""
MOST_QUESTIONS = 64

Cause = Literal["a model was unloaded", "the worker started", "purged"]


@dataclass(slots=True)
class Round:
    """A round of deletions: it lasts until the fetched models take at most `limit_bytes`, or no
    more may be deleted. `refused` maps the folders that were kept to the reasons."""

    cause: Cause
    limit_bytes: int
    until_at: float
    refused: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Purge:
    """A round that clients wait for. `heard` has the instant at which each request last arrived."""

    round: Round
    heard: dict[str, float]
    phase: Literal["waiting", "deleting", "done"] = "waiting"
    note: str = ""
    let_go: list[LetGo] = field(default_factory=list[LetGo])
    stays: tuple[StoredModel, ...] = ()
    ended_at: float | None = None

    @property
    def state(self) -> PurgeState:
        return PurgeState(
            phase=self.phase,
            note=self.note,
            let_go=tuple(self.let_go),
            stays=self.stays,
            questions=tuple(self.heard),
        )


class StoreRounds:
    """The rounds of deletions on one node. If `limit_bytes` is below 0, rounds begin only when a
    client asks for one (a purge)."""

    def __init__(self, limit_bytes: int, now: float) -> None:
        self._limit_bytes = limit_bytes
        self._own: Round | None = None
        self.purges: list[Purge] = []
        self.begin("the worker started", now)

    def begin(self, cause: Cause, now: float) -> None:
        """Begin a new round of the node itself. Refusals in earlier rounds no longer count."""
        if self._limit_bytes >= 0:
            self._own = Round(cause, self._limit_bytes, now + ROUND_S)

    @property
    def purge(self) -> Purge | None:
        return next((purge for purge in self.purges if purge.ended_at is None), None)

    @property
    def current(self) -> Round | None:
        """Return the running round. A purge that a client waits for comes before the node's own
        round."""
        return self._own if self.purge is None else self.purge.round

    def ask(self, question: PurgeAsked, now: float) -> None:
        """Process a client's request: begin a purge, or let the client join or leave a running
        purge."""
        joined = next((purge for purge in self.purges if question.question in purge.heard), None)
        if joined is not None:
            joined.heard[question.question] = now
            if question.leaves and joined.ended_at is None:
                del joined.heard[question.question]
        elif not question.leaves:
            self._join(question.question, now)

    def _join(self, question: str, now: float) -> None:
        if self.purge is None:
            self.purges.append(Purge(Round("purged", 0, now), {question: now}))
        elif len(self.purge.heard) < MOST_QUESTIONS:
            self.purge.heard[question] = now

    def tick(self, now: float) -> None:
        """Drop purges that ended more than `ENDED_S` ago, and purges that no client waits for any
        more."""
        for purge in self.purges:
            if purge.ended_at is None:
                purge.heard = {q: at for q, at in purge.heard.items() if now - at < LEASE_S}
        self.purges = [
            purge
            for purge in self.purges
            if (purge.heard if purge.ended_at is None else now - purge.ended_at < ENDED_S)
        ]

    def exhausted(self, stays: tuple[StoredModel, ...], now: float, *, waits: bool) -> None:
        """Record that no further model can be deleted now. `waits`: a model is only kept because it
        is in use, so the node's own round continues. A purge ends."""
        purge = self.purge
        if purge is not None:
            purge.phase, purge.note, purge.stays, purge.ended_at = "done", "", stays, now
        elif self._own is not None and not (waits and now < self._own.until_at):
            self._own = None
