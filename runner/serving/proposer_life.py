"""Decides whether a proposer in another runner can be used now.

Pure: time arrives as `now`. The round trip is measured before a proposer is used, and every second
from then on. A proposer that was lost or refused is tried again after a pause; each pause is twice
as long, until a draft arrives. Time in which this process stood still does not count as the
proposer's silence.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bus.models.role_plan import FAR_S
from bus.patience import LostTime
from bus.wire.errors import FailReason, RefusalReason
from bus.wire.messages.control import ProposerPlace
from bus.wire.messages.requests import ProposerState, ProposerUse
from bus.wire.proposals import PROPOSE_S

SILENT_S = 3.0
"""A proposer that is silent for this long is lost."""
PING_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
TRIPS = 3
"""A proposer is too far away if the shortest of its last so many round trips is too long."""


@dataclass(frozen=True, slots=True)
class ProposerTrouble:
    """Why a proposer cannot be used now: its loss, or its refusal."""

    reason: FailReason | RefusalReason
    why: str


@dataclass(slots=True)
class ProposerLife:
    """The state of the connection to a proposer. `begin` replaces the proposer by another one.
    `use` is the state that this runner's readings show."""

    use: ProposerUse
    _lost: LostTime = field(default_factory=LostTime)
    _heard_at: float = 0.0
    _pinged_at: float | None = None
    _last_ping_at: float = float("-inf")
    _trips: deque[float] = field(default_factory=lambda: deque[float](maxlen=TRIPS))
    _tries_at: float = 0.0
    _pause_s: float = FIRST_PAUSE_S
    _sent: dict[int, float] = field(default_factory=dict[int, float])

    @property
    def state(self) -> ProposerState:
        return self.use.state

    @property
    def why_not(self) -> str:
        """Return why no drafts can be requested; empty if they can."""
        if self.state == "ready":
            return ""
        name = f"{self.use.model}, which the model's card names as its draft model,"
        return self.use.why or f"{name} is not ready in another runner"

    def begin(self, place: ProposerPlace, now: float) -> None:
        """Begin with a proposer at another place, or with none."""
        self._pause_s = FIRST_PAUSE_S
        state: ProposerState = "paused" if place.address else "none"
        self.use = ProposerUse(
            model=place.model, node=place.node, state=state, why=place.why, lost=self.use.lost
        )
        self._tries_at = now
        self._sent.clear()

    def may_connect(self, now: float) -> bool:
        """Return whether a paused proposer is to be tried again."""
        return self.state == "paused" and now >= self._tries_at

    def connecting(self, now: float) -> None:
        """Record that a connection was opened."""
        self._heard_at, self._pinged_at, self._last_ping_at = now, None, float("-inf")
        self._trips.clear()
        self._become("connecting")

    def note_alive(self, now: float) -> None:
        """Record that a message of the proposer has arrived."""
        self._heard_at = now

    def pings(self, now: float) -> bool:
        """Return whether to send a ping now; if so, it counts as sent. Only one ping is unanswered
        at a time. Until the proposer is used, the next ping follows each answer at once."""
        if self._pinged_at is not None or self.state not in ("connecting", "ready"):
            return False
        if self.state == "ready" and now - self._last_ping_at < PING_S:
            return False
        self._pinged_at = self._last_ping_at = now
        return True

    def ponged(self, now: float) -> ProposerTrouble | None:
        """Measure a round trip. Return a refusal if the proposer is too far away."""
        if self._pinged_at is None:
            return None
        self._trips.append(now - self._pinged_at)
        self._pinged_at, shortest_s = None, min(self._trips)
        self.use = self.use.model_copy(update={"round_trip_ms": round(shortest_s * 1000, 3)})
        if len(self._trips) < TRIPS or shortest_s <= FAR_S:
            return None
        why = (
            f"the round trip to {self.use.model} is {shortest_s * 1000:.0f} ms; the limit is "
            f"{FAR_S * 1000:.0f} ms"
        )
        return ProposerTrouble("unsupported", why)

    @property
    def is_near(self) -> bool:
        """Return whether a measured round trip is short enough."""
        return bool(self._trips) and min(self._trips) <= FAR_S

    def attached(self) -> None:
        """Record that the proposer has agreed to draft."""
        self._become("ready")

    def note_question(self, number: int, now: float) -> None:
        self._sent[number] = now

    def note_answer(self, number: int, *, is_draft: bool) -> None:
        self._sent.pop(number, None)
        if is_draft:
            self._pause_s = FIRST_PAUSE_S

    def look(self, now: float) -> ProposerTrouble | None:
        """Return the trouble if the proposer has been silent, or has owed a draft, for too long;
        else None."""
        self._lost.pass_by(now)
        if self.state not in ("connecting", "ready"):
            return None
        if now - max(self._heard_at, self._lost.woke_at) > SILENT_S:
            why = f"{self.use.model} was silent for {SILENT_S:g} s"
            return ProposerTrouble("runner_lost", why)
        if any(now - at > PROPOSE_S for at in self._sent.values()):
            why = f"a draft of {self.use.model} did not arrive within {PROPOSE_S:g} s"
            return ProposerTrouble("deadline", why)
        return None

    def troubled(self, trouble: ProposerTrouble, now: float) -> None:
        """Pause after the proposer's loss or refusal."""
        self._sent.clear()
        self._tries_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        lost = self.use.lost + (trouble.reason in ("runner_lost", "deadline"))
        update = {"state": "paused", "reason": trouble.reason, "why": trouble.why, "lost": lost}
        self.use = self.use.model_copy(update=update)

    def _become(self, state: ProposerState) -> None:
        update: dict[str, object] = {"state": state}
        if state == "ready":
            update |= {"reason": None, "why": ""}
        self.use = self.use.model_copy(update=update)
