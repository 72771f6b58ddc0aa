"""The seam between a link and the keys of its cluster.

Pure. `bus.transport` asks, `bus.keyring` answers: as this node, to nodes that are known, or at
the door, to members that are not known yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bus.ids import NodeId


@dataclass(frozen=True, slots=True)
class Reach:
    """What a client needs for one server: 32 bytes each; `secret` is the client's own."""

    server_public: bytes
    public: bytes
    secret: bytes = field(repr=False)


class Gate(Protocol):
    """Who may connect to the sockets of one ZAP domain. Called in the authenticator's thread."""

    def admit(self, public: bytes) -> str | None:
        """The name of the client with this key (empty: a member without one), None to refuse."""
        ...

    def refused(self, address: str, why: str) -> None:
        """A handshake at, or with, `address` failed."""
        ...


class Security(Protocol):
    """What a link asks about keys. `bus.keyring` has the two that there are."""

    @property
    def domain(self) -> str:
        """The ZAP domain under which clients are admitted."""
        ...

    def enter(self) -> None:
        """A socket is about to serve: have its clients admitted from now on."""
        ...

    def leave(self) -> None:
        """A socket that served is closed."""
        ...

    def serving(self) -> bytes:
        """The secret to serve with now."""
        ...

    def reaching(self, peer: NodeId | None) -> Sequence[Reach]:
        """What to reach `peer` with, in the order to try."""
        ...

    def refused(self, address: str, why: str) -> None:
        """A handshake at, or with, `address` failed."""
        ...
