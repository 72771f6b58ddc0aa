"""The actions that `bus.membership.membership` decides. Its caller, the shell, carries them out in
order.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerHello, PeerPorts

SILENT_S = 3.0
"""A peer that has not answered for this many seconds is silent, and its next address is tried."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to an address. The connection is called a *line*. `node`: the node that is expected
    at the address; None: unknown."""

    address: str
    node: NodeId | None


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection (the line) to an address."""

    address: str


@dataclass(frozen=True, slots=True)
class SayHello:
    """Send a hello, the first message of a new connection, to a peer."""

    address: str
    hello: PeerHello


@dataclass(frozen=True, slots=True)
class Follow:
    """Subscribe on `host` to a peer's planes (its published control and telemetry messages), in
    place of earlier subscriptions to that peer."""

    node: NodeId
    host: str
    ports: PeerPorts


@dataclass(frozen=True, slots=True)
class Unfollow:
    """End all subscriptions to a peer."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Say:
    """Log a message for the operator."""

    message: str
    node: NodeId | None = None
    address: str = ""


Action = Dial | HangUp | SayHello | Follow | Unfollow | Say
