"""What other nodes say of their pulls, and which of them is to be waited for.

Pure: time arrives as `now`. A node that fetches comes before one that does not; then the older
claim comes first, then the lesser node id. So all nodes that hear each other name the same node,
and that one does not wait. A node is waited for no longer when it was silent for `SILENT_S`, when
its pull stands still, or when it has the model and does not offer it within `OFFERED_S`. A node
that gives no weights is never waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullClaim, PullReading, PullState

SILENT_S = 5.0
"""Ten times what lies between two readings of a node that pulls."""
STALLED_S = 120.0
"""Longer than a pull itself waits for a silent hub."""
HASHING_S = 1800.0
"""No progress is told while files are hashed that an earlier pull left."""
OFFERED_S = 10.0

Rank = tuple[bool, float, NodeId]


@dataclass(slots=True)
class _Other:
    """A node's pull. `moved_at`: when it had brought more, or was in another phase, than before."""

    state: PullState
    heard_at: float
    moved_at: float


class OtherPulls:
    """The pulls of all nodes but `me`."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._of: dict[NodeId, dict[ModelId, _Other]] = {}

    def heard(self, reading: PullReading, now: float) -> None:
        """Take in what a node says of all its pulls. Of two of a model the one that did not fail
        counts, else the later."""
        if reading.node == self._me:
            return
        before = self._of.get(reading.node, {})
        self._of[reading.node] = {
            state.model: _Other(state, now, _moved_at(state, before.get(state.model), now))
            for state in sorted(reading.pulls, key=lambda one: one.phase != "failed")
        }

    def first(self, model: ModelId, hub: str, mine: PullClaim | None, now: float) -> NodeId | None:
        """Return the node to wait for; None where this one is first, or alone. `mine` is this
        node's claim; without one it is behind all others."""
        claims = {
            node: claim
            for node, pulls in self._of.items()
            if (other := pulls.get(model)) is not None
            and (claim := other.state.claim) is not None
            and claim.gives
            and claim.hub == hub
            and _why_not(other, now) is None
        }
        if not claims:
            return None
        node = min(claims, key=lambda one: rank(one, claims[one]))
        if mine is not None and mine.gives and rank(self._me, mine) < rank(node, claims[node]):
            return None
        return node

    def state_of(self, node: NodeId, model: ModelId) -> PullState | None:
        """Return what a node said last of its pull of a model; None where it has none."""
        other = self._of.get(node, {}).get(model)
        return None if other is None else other.state

    def why_not(self, node: NodeId, model: ModelId, now: float) -> str:
        """Return why a node is waited for no longer, in words that follow its name."""
        other = self._of.get(node, {}).get(model)
        if other is None:
            return "stopped its pull"
        return _why_not(other, now) or "lets another node go first"


def rank(node: NodeId, claim: PullClaim) -> Rank:
    """Return the place of a node's claim among all: the least is first."""
    return not claim.fetches, claim.at_s, node


def _why_not(other: _Other, now: float) -> str | None:
    """Return why a pull is not waited for; None where it is."""
    state, still_s = other.state, now - other.moved_at
    if state.phase == "failed":
        return f"could not pull it ({state.message})"
    if state.phase == "done":
        late = still_s > OFFERED_S
        return f"has it, and did not offer it within {OFFERED_S:g} s" if late else None
    if now - other.heard_at > SILENT_S:
        return f"was silent for {SILENT_S:g} s"
    most_s = HASHING_S if state.phase in ("checking", "publishing") else STALLED_S
    return f"made no progress for {most_s:g} s" if still_s > most_s else None


def _moved_at(state: PullState, before: _Other | None, now: float) -> float:
    if before is None or _mark(state) != _mark(before.state):
        return now
    return before.moved_at


def _mark(state: PullState) -> tuple[object, ...]:
    """Return what changes while a pull goes on, or waits on purpose."""
    return state.phase, state.done_bytes, state.note, state.claim
