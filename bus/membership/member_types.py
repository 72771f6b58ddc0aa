"""What membership knows and says: this node, lines, peers, and the actions it asks for.

Pure. See `bus.membership.membership`, which decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.wire.ids import Boot, NodeId
from bus.wire.messages.peers import FoundBy, PeerHello, PeerPorts, PeerStatus

SILENT_S = 3.0
"""Without an answer for so long a peer is silent, and its next address is tried."""


# --- actions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a line to an address. `node` is whom we expect there, if anybody."""

    address: str
    node: NodeId | None


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the line to an address."""

    address: str


@dataclass(frozen=True, slots=True)
class SayHello:
    """Say hello on a line."""

    address: str
    hello: PeerHello


@dataclass(frozen=True, slots=True)
class Follow:
    """Subscribe to a peer's planes on `host`; replaces what was followed of it before."""

    node: NodeId
    host: str
    ports: PeerPorts


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Subscribe to nothing of a peer any more."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Say:
    """Something an operator should read, once."""

    message: str
    node: NodeId | None = None
    address: str = ""


Action = Dial | HangUp | SayHello | Follow | Unfollow | Say


# --- what is known -------------------------------------------------------------------------


@dataclass(slots=True)
class PeerLine:
    """One dialled address. `node` is whom we expect or have heard there."""

    address: str
    node: NodeId | None
    opened_at: float
    said_at: float | None = None
    heard_at: float | None = None
    refused: str = ""

    def is_silent(self, now: float) -> bool:
        since = self.opened_at if self.heard_at is None else self.heard_at
        return now - since >= SILENT_S


@dataclass(slots=True)
class Peer:
    """One other node. `boots` are the processes that spoke for it lately: when first, when last."""

    node: NodeId
    name: str = ""
    boot: Boot | None = None
    boots: dict[Boot, tuple[float, float]] = field(default_factory=dict[Boot, tuple[float, float]])
    spoke_at: float | None = None
    addresses: tuple[str, ...] = ()
    ports: PeerPorts = field(default_factory=lambda: PeerPorts(control=0, telemetry=0, candidate=0))
    protocol: int = 0
    host: str = ""
    followed: tuple[str, PeerPorts] | None = None
    status: PeerStatus = "silent"
    tried: int = 0
    round_trip_s: float | None = None
    clock_offset_s: float | None = None
    why: str = ""
    found_by: FoundBy = ""
