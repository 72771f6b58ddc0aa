"""A node's claims on the models that it will download, and the pulls of other nodes that it waits
for.

Pure: time arrives as `now`. A node publishes its claim, and waits `SETTLE_S` for other claims
before it fetches. If readings arrive within half of that, exactly one node fetches, even if clocks
differ. If they take longer and two nodes begin, one of them stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.wire.cards import NodeCard
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullClaim, PullReading, PullState
from bus.wire.messages.wire import Message
from worker.pulling.claims.others import OtherPulls

SETTLE_S = 0.3
"""Time between a claim and the first fetched byte, if there are other nodes."""


@dataclass(slots=True)
class PullStanding:
    """The standing of one pull among the pulls of other nodes. `claim` was made at `claimed_at`.
    `follows` is the node whose download this pull waits for; `left` says why it gave up waiting for
    the previous node."""

    claim: PullClaim | None = None
    claimed_at: float = 0.0
    follows: NodeId | None = None
    left: str = ""

    def withdraw(self) -> None:
        """Withdraw the claim and follow no node."""
        self.claim = self.follows = None

    def begin(self) -> None:
        """Record that this node has begun to fetch the model from the hub."""
        self._fetches(True)

    def give_way(self) -> None:
        """Record that this node no longer fetches; the claim stays."""
        self._fetches(False)

    def _fetches(self, fetches: bool) -> None:
        if self.claim is not None:
            self.claim = self.claim.model_copy(update={"fetches": fetches})


class Claims:
    """The claims of the node `me`, whose pulls use `hub`."""

    def __init__(self, me: NodeId, hub: str) -> None:
        self._hub = hub
        self._others = OtherPulls(me)

    def observe(self, message: Message, now: float) -> None:
        """Process another node's reading of its pulls."""
        if isinstance(message, PullReading):
            self._others.take_reading(message, now)

    def followed(
        self, model: ModelId, standing: PullStanding, cards: Mapping[NodeId, NodeCard], now: float
    ) -> PullState | None:
        """Return the state to report while another node fetches the model; None if none does, or
        this node has precedence. `cards` are those of other nodes."""
        first = self._others.first(model, self._hub, standing.claim, now)
        left = standing.follows
        if left is not None and left != first:
            standing.left = f"{_name(left, cards)} {self._others.why_not(left, model, now)}"
        standing.follows = first
        theirs = None if first is None else self._others.state_of(first, model)
        if first is None or theirs is None:
            return None
        return PullState(
            model=model,
            phase="waiting",
            note=f"{_name(first, cards)} is downloading it; this node copies it from there",
            done_bytes=theirs.done_bytes,
            total_bytes=theirs.total_bytes,
        )

    def claim(self, standing: PullStanding, now: float, at_s: float, *, gives: bool) -> bool:
        """Claim a model at the wall-clock time `at_s`, unless this pull has claimed it already.
        Return whether the claim is `SETTLE_S` old, so that an earlier claim of another node would
        have arrived. `gives`: other nodes can copy the model from this node."""
        if standing.claim is None:
            standing.claim = PullClaim(at_s=at_s, hub=self._hub, gives=gives)
            standing.claimed_at = now
        return now - standing.claimed_at >= SETTLE_S


def _name(node: NodeId, cards: Mapping[NodeId, NodeCard]) -> str:
    return cards[node].name if node in cards else node
