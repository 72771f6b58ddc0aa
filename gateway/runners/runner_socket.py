"""Talks to one runner over a DEALER socket, in the protocol version that the runner chose.

Messages whose form depends on the version wait until the runner's `Welcome` names it. The socket
says hello each time it is connected. If it stays disconnected for `BACK_S`, `on_gone` is called.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.client import BusClient
from bus.links.transport import Change, Link
from bus.wire.data_frames import pack_to_runner
from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from bus.wire.messages.tokens import (
    DATA_PROTOCOL_MAX,
    DATA_PROTOCOL_MIN,
    Cancel,
    Hello,
    Recall,
    Submit,
    ToRunner,
)
from gateway.runners.versions import RECALL_PROTOCOL, submit_for

BACK_S = 1.0
"""Time in seconds within which a disconnected socket must reconnect."""


class RunnerSocket:
    """A socket to the runner at `address`, on `node` if that is known. `identity` names this HTTP
    process. `on_message` receives the frames of each message."""

    def __init__(
        self,
        bus: BusClient,
        identity: str,
        address: str,
        node: NodeId | None,
        *,
        on_message: Callable[[list[bytes]], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._boot = bus.speaker.boot
        self._reactor = bus.reactor
        self._identity = identity
        self._on_gone = on_gone
        self._protocol: int | None = None
        self._waiting: list[Submit | Cancel | Recall] = []
        self._connects = 0
        self._lost_at: float | None = None
        self._is_closed = False
        self._link = Link("dealer", identity=identity, security=bus.security)
        self._link.tally = None if node is None else bus.traffic.way(node, "data")
        self._link.connect(address, peer=node)
        self._reactor.watch_changes(self._link, self._changed)
        self._reactor.watch(self._link, on_message)
        self._say_hello()

    def send(self, message: ToRunner) -> bool:
        """Send a message that has the same form in all versions. Return whether it was sent."""
        return not self._is_closed and self._link.send(pack_to_runner(message))

    def send_adapted(self, message: Submit | Cancel | Recall) -> bool | Refusal:
        """Send a message in the runner's version, or store it until that is known. Return whether
        that was done; a refusal if the version cannot express the request."""
        if self._protocol is None:
            self._waiting.append(message)
            return not self._is_closed
        if isinstance(message, Submit) and self._protocol < DATA_PROTOCOL_MAX:
            adapted = submit_for(message, self._protocol)
            return adapted if isinstance(adapted, Refusal) else self.send(adapted)
        if isinstance(message, Recall) and self._protocol < RECALL_PROTOCOL:
            return True
        return self.send(message)

    def choose(self, protocol: int) -> list[Submit | Cancel | Recall]:
        """Set the runner's version. Return the messages that waited for it, in order."""
        self._protocol = protocol
        waiting, self._waiting = self._waiting, []
        return waiting

    def close(self) -> None:
        """Close the socket. Later messages are not sent."""
        self._is_closed = True
        self._reactor.unwatch(self._link)
        self._link.close()

    def _say_hello(self) -> None:
        self.send(Hello(self._identity, self._boot, DATA_PROTOCOL_MIN, DATA_PROTOCOL_MAX))

    def _changed(self, change: Change) -> None:
        if change == "connected":
            self._connects += 1
            self._lost_at = None
            if self._connects > 1:
                self._say_hello()
            return
        if self._lost_at is None:
            self._lost_at = self._reactor.now()
            self._reactor.later(BACK_S, self._check_if_back)

    def _check_if_back(self) -> None:
        if self._lost_at is not None and self._reactor.now() - self._lost_at >= BACK_S * 0.9:
            self._on_gone()
