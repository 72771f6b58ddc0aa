"""The pulls of other nodes, and the choice of the one to wait for.

Pure: time arrives as `now`. A node that already fetches has precedence, then the older claim, then
the smaller node id. So all nodes that receive each other's claims choose the same node, and the
chosen node does not wait. A node is no longer waited for if it is silent for `SILENT_S`, its pull
makes no progress, or it has the model but does not offer it within `OFFERED_S`. A node that offers
no weights is never waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullClaim, PullReading, PullState

SILENT_S = 5.0
"""A node that is silent for this long is no longer waited for. It is ten times the interval between
readings of a node that pulls."""
STALLED_S = 120.0
"""A pull without progress for this long is no longer waited for. A pull itself waits less for a
silent hub."""
HASHING_S = 1800.0
"""While files are hashed, a pull without progress for this long is no longer waited for. The limit
is longer than `STALLED_S`, because a pull reports no progress then."""
OFFERED_S = 10.0

Rank = tuple[bool, float, NodeId]


@dataclass(slots=True)
class _Other:
    """A pull of another node. `moved_at` is when it last made progress or changed its phase."""

    state: PullState
    heard_at: float
    moved_at: float


class OtherPulls:
    """The pulls of all nodes except `me`."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._of: dict[NodeId, dict[ModelId, _Other]] = {}

    def take_reading(self, reading: PullReading, now: float) -> None:
        """Process a node's reading of all its pulls. If a node has two pulls of a model, the one
        without a failure counts, else the later one."""
        if reading.node == self._me:
            return
        before = self._of.get(reading.node, {})
        self._of[reading.node] = {
            state.model: _Other(state, now, _moved_at(state, before.get(state.model), now))
            for state in sorted(reading.pulls, key=lambda pull: pull.phase != "failed")
        }

    def first(self, model: ModelId, hub: str, mine: PullClaim | None, now: float) -> NodeId | None:
        """Return the node to wait for; None if this node has precedence, or there is no pull to
        wait for. `mine` is this node's claim; without a claim this node comes last."""
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
        node = min(claims, key=lambda peer: rank(peer, claims[peer]))
        if mine is not None and mine.gives and rank(self._me, mine) < rank(node, claims[node]):
            return None
        return node

    def state_of(self, node: NodeId, model: ModelId) -> PullState | None:
        """Return a node's last state of its pull of a model; None if it has none."""
        other = self._of.get(node, {}).get(model)
        return None if other is None else other.state

    def why_not(self, node: NodeId, model: ModelId, now: float) -> str:
        """Return why a node is no longer waited for, as words after its name."""
        other = self._of.get(node, {}).get(model)
        if other is None:
            return "stopped its pull"
        return _why_not(other, now) or "lets another node go first"


def rank(node: NodeId, claim: PullClaim) -> Rank:
    """Return the sort key of a node's claim; the smallest key has precedence."""
    return not claim.fetches, claim.at_s, node


def _why_not(other: _Other, now: float) -> str | None:
    """Return why this node does not wait for a pull; None if it waits."""
    state, still_s = other.state, now - other.moved_at
    if state.phase == "failed":
        return f"could not pull it ({state.message})"
    if state.phase == "done":
        late = still_s > OFFERED_S
        return f"has it, but did not offer it within {OFFERED_S:g} s" if late else None
    if now - other.heard_at > SILENT_S:
        return f"was silent for {SILENT_S:g} s"
    most_s = HASHING_S if state.phase in ("checking", "publishing") else STALLED_S
    return f"made no progress for {most_s:g} s" if still_s > most_s else None


def _moved_at(state: PullState, before: _Other | None, now: float) -> float:
    if before is None or _mark(state) != _mark(before.state):
        return now
    return before.moved_at


def _mark(state: PullState) -> tuple[object, ...]:
    """Return values that change whenever a pull makes progress, or reports why it waits."""
    return state.phase, state.done_bytes, state.note, state.claim
