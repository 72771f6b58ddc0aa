"""The actions that membership asks of its shell, in order.

Pure. `bus.membership.membership` decides them.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerHello, PeerPorts

SILENT_S = 3.0
"""A peer without an answer for this long is silent, and its next address is tried."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to an address (open a *line*). `node`: the node that is expected there; None:
    unknown."""

    address: str
    node: NodeId | None


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection (the line) to an address."""

    address: str


@dataclass(frozen=True, slots=True)
class SayHello:
    """An action: send the first message of a new connection to a peer."""

    address: str
    hello: PeerHello


@dataclass(frozen=True, slots=True)
class Follow:
    """Subscribe to a peer's planes on `host`, in place of earlier subscriptions to it."""

    node: NodeId
    host: str
    ports: PeerPorts


@dataclass(frozen=True, slots=True)
class Unfollow:
    """End all subscriptions to a peer."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Say:
    """Log a message for the operator, once."""

    message: str
    node: NodeId | None = None
    address: str = ""


Action = Dial | HangUp | SayHello | Follow | Unfollow | Say
