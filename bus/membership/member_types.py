"""What membership asks of its shell: the actions, in the order in which they are to be done.

Pure. See `bus.membership.membership`, which decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerHello, PeerPorts

SILENT_S = 3.0
"""Without an answer for so long a peer is silent, and its next address is tried."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a line to an address, where `node` is expected (None: not known who)."""

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
