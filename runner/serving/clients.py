"""The gateway processes that speak to this runner: who said hello, and who is still there.

Pure: time arrives as `now`. A gateway process that has not been heard for `SILENT_S` is given up,
and what it asked for is cancelled. Time in which the runner itself stood still does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.wire.ids import Boot
from bus.wire.messages.tokens import DATA_PROTOCOL_MAX, DATA_PROTOCOL_MIN, Hello

SILENT_S = 3.0
GIVEN_UP = (
    f"the runner had no word from this gateway process for {SILENT_S:g} s and ended what it had "
    "asked for; ask again"
)
"""What a gateway process is told that speaks and is not, or no longer, known."""


@dataclass(slots=True)
class Client:
    """One life of one gateway process."""

    name: str
    boot: Boot
    protocol: int
    heard_at: float


@dataclass(slots=True)
class Clients:
    """By socket identity."""

    known: dict[bytes, Client] = field(default_factory=dict[bytes, Client])

    def greet(self, peer: bytes, hello: Hello, now: float) -> Client | str:
        """Take up a gateway process, or say why not."""
        protocol = min(DATA_PROTOCOL_MAX, hello.protocol_max)
        if protocol < max(DATA_PROTOCOL_MIN, hello.protocol_min):
            return (
                f"no common protocol: this runner speaks {DATA_PROTOCOL_MIN} to "
                f"{DATA_PROTOCOL_MAX}, {hello.gateway} {hello.protocol_min} to "
                f"{hello.protocol_max}"
            )
        gateway = Client(hello.gateway, hello.boot, protocol, now)
        self.known[peer] = gateway
        return gateway

    def heard(self, peer: bytes, now: float) -> bool:
        """Return whether the peer has said hello; if so, it lives."""
        gateway = self.known.get(peer)
        if gateway is None:
            return False
        gateway.heard_at = now
        return True

    def silent(self, now: float, woke_at: float) -> list[bytes]:
        """Return the peers to be given up now. The runner last stood still till `woke_at`."""
        return [
            peer for peer, one in self.known.items() if now - max(one.heard_at, woke_at) > SILENT_S
        ]

    def forget(self, peer: bytes) -> Client | None:
        """Drop a gateway process and return it; None for an unknown one."""
        return self.known.pop(peer, None)
