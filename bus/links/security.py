"""The protocols by which a link uses the keys of its cluster, without knowing where they come from.

Pure. `bus.links.transport` uses these types, and `bus.links.keyring` implements them. One security
is for links between nodes that know each other. Another one is for the door, the socket at which
nodes that do not know each other yet say hello.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bus.wire.ids import NodeId

RETRY_S = 0.2
"""Minimum time between two keys that a client tries at one server."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """The keys of a client for one server, 32 bytes each; `secret` is the client's own."""

    server_public: bytes
    public: bytes
    secret: bytes = field(repr=False)


@dataclass(slots=True)
class Server:
    """An address that a link connects to, and the keys in use there."""

    peer: NodeId | None
    used: CurveKeys
    tried_at: float
    is_up: bool = False
    is_given_up: bool = False
    """Whether ZeroMQ has stopped trying for good: the server did not admit this client, or the
    other side broke the protocol."""

    def other_keys(self, valid: Sequence[CurveKeys], now: float) -> CurveKeys | None:
        """Return the keys to try after `used` has failed: the next valid ones, cyclically. None if
        no other key is valid, or if the key was changed a moment ago."""
        after = valid.index(self.used) + 1 if self.used in valid else 0
        chosen = valid[after % len(valid)]
        return chosen if chosen != self.used and now >= self.tried_at + RETRY_S else None


class Gate(Protocol):
    """Decides who may connect to the sockets of one ZAP domain. Called in the authenticator's
    thread."""

    def admit(self, public: bytes) -> str | None:
        """Return the name of the client with this key; "" for a member without a name; None
        refuses."""
        ...

    def refused(self, address: str, why: str) -> None:
        """Log a failed handshake at, or with, `address`."""
        ...


class Security(Protocol):
    """The keys and limits of a link. `bus.links.keyring` has the implementations."""

    @property
    def domain(self) -> str:
        """Return the ZAP domain that admits clients."""
        ...

    @property
    def max_bytes(self) -> int:
        """Return the limit of a message in bytes. A client that this node does not know can make it
        store a message of this size per connection before the handshake fails; libzmq has no
        smaller limit for handshakes."""
        ...

    @property
    def is_local(self) -> bool:
        """Return whether this security allows only connections within this machine."""
        ...

    def enter(self) -> None:
        """Start to admit the clients of a socket that is about to listen."""
        ...

    def leave(self) -> None:
        """Record that a listening socket is closed."""
        ...

    def serving(self) -> bytes:
        """Return the current Curve25519 secret with which this node listens."""
        ...

    def reaching(self, peer: NodeId | None) -> Sequence[CurveKeys]:
        """Return the keys with which to connect to `peer`, in the order to try."""
        ...

    def refused(self, address: str, why: str) -> None:
        """Log a failed handshake at, or with, `address`."""
        ...
