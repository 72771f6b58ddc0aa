"""The seam between a link and the keys of its cluster.

Pure. `bus.links.transport` asks, `bus.links.keyring` answers: as this node, to nodes that are
known, or at the door, to members that are not known yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bus.wire.ids import NodeId

RETRY_S = 0.2
"""The least time between two keys that a client tries with one server."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """What a client needs for one server: 32 bytes each; `secret` is the client's own."""

    server_public: bytes
    public: bytes
    secret: bytes = field(repr=False)


@dataclass(slots=True)
class Server:
    """An address that a link connects to, and the keys that are being tried there."""

    peer: NodeId | None
    used: CurveKeys
    tried_at: float
    is_up: bool = False
    is_given_up: bool = False
    """Whether ZeroMQ has stopped trying: it does, for good, when it was told that it is not
    admitted, or when the other side broke the protocol."""

    def other_keys(self, valid: Sequence[CurveKeys], now: float) -> CurveKeys | None:
        """Return what to try after `used` has failed: the next of the valid keys, round and round;
        None while there is no other or the last change was only just."""
        after = valid.index(self.used) + 1 if self.used in valid else 0
        chosen = valid[after % len(valid)]
        return chosen if chosen != self.used and now >= self.tried_at + RETRY_S else None


class Gate(Protocol):
    """Who may connect to the sockets of one ZAP domain. Called in the authenticator's thread."""

    def admit(self, public: bytes) -> str | None:
        """Return the name of the client with this key, "" for a member without; None refuses."""
        ...

    def refused(self, address: str, why: str) -> None:
        """Take note of a handshake at, or with, `address` that failed."""
        ...


class Security(Protocol):
    """What a link asks about keys. `bus.links.keyring` has the two that there are."""

    @property
    def domain(self) -> str:
        """Return the ZAP domain under which clients are admitted."""
        ...

    @property
    def max_bytes(self) -> int:
        """Return the longest message, in bytes. A stranger can make us hold as much before his
        handshake fails, for each connection: libzmq has no smaller limit for handshakes."""
        ...

    @property
    def is_local(self) -> bool:
        """Return whether it is for connections within this machine alone."""
        ...

    def enter(self) -> None:
        """Have the clients of a socket that is about to serve admitted from now on."""
        ...

    def leave(self) -> None:
        """Take note that a socket that served is closed."""
        ...

    def serving(self) -> bytes:
        """Return the secret to serve with now."""
        ...

    def reaching(self, peer: NodeId | None) -> Sequence[CurveKeys]:
        """Return what to reach `peer` with, in the order to try."""
        ...

    def refused(self, address: str, why: str) -> None:
        """Take note of a handshake at, or with, `address` that failed."""
        ...
