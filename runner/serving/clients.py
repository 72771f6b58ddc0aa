"""The gateway processes connected to this runner.

Pure: time arrives as `now`. If a gateway process is silent for `SILENT_S`, the runner drops it and
cancels its requests. Time in which the runner itself stood still does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.wire.ids import Boot
from bus.wire.messages.tokens import DATA_PROTOCOL_MAX, DATA_PROTOCOL_MIN, Hello

SILENT_S = 3.0
GIVEN_UP = (
    f"the runner heard nothing from this gateway process for {SILENT_S:g} s and ended "
    "its requests; retry"
)
"""Sent to a gateway process that sends other messages before it says hello, or after it was
dropped."""


@dataclass(slots=True)
class Client:
    """A gateway process that has said hello; `boot` identifies its run."""

    name: str
    boot: Boot
    protocol: int
    heard_at: float


@dataclass(slots=True)
class Clients:
    """The connected gateway processes, by the identity of their socket."""

    by_peer: dict[bytes, Client] = field(default_factory=dict[bytes, Client])

    def greet(self, peer: bytes, hello: Hello, now: float) -> Client | str:
        """Add a gateway process that says hello. Return it, or a text that says why it is not
        accepted."""
        protocol = min(DATA_PROTOCOL_MAX, hello.protocol_max)
        if protocol < max(DATA_PROTOCOL_MIN, hello.protocol_min):
            return (
                f"no common protocol version: this runner speaks {DATA_PROTOCOL_MIN} "
                f"to {DATA_PROTOCOL_MAX}, {hello.gateway} speaks {hello.protocol_min} "
                f"to {hello.protocol_max}; run the same shoal version on both"
            )
        gateway = Client(hello.gateway, hello.boot, protocol, now)
        self.by_peer[peer] = gateway
        return gateway

    def note_alive(self, peer: bytes, now: float) -> bool:
        """Record that a message came from `peer`; return whether the peer has said hello before."""
        gateway = self.by_peer.get(peer)
        if gateway is None:
            return False
        gateway.heard_at = now
        return True

    def silent(self, now: float, woke_at: float) -> list[bytes]:
        """Return the peers that have been silent too long. This process last stood still until
        `woke_at`; silence before that does not count."""
        return [
            peer
            for peer, client in self.by_peer.items()
            if now - max(client.heard_at, woke_at) > SILENT_S
        ]

    def forget(self, peer: bytes) -> Client | None:
        """Remove and return a gateway process; None if unknown."""
        return self.by_peer.pop(peer, None)
