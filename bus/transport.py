"""Talks to ZeroMQ, and is its only home: sockets as links that never block.

A send that cannot be done at once returns False, and what to do then is the caller's promise to
keep (telemetry drops, control repeats, tokens have credit). Every link sets LINGER 0 and size
caps. A bound ipc path is guarded by a lock file, for a second bind would steal it in silence.
The loops that drain links are in `bus.loops`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import IO, Any, Literal, cast

import zmq
from zmq.utils.monitor import parse_monitor_message

from bus.errors import AlreadyRunning

Frames = list[bytes]
Poller = zmq.Poller
READABLE: int = zmq.POLLIN
Socket = zmq.Socket[bytes]
Kind = Literal["pub", "sub", "dealer", "router", "xpub", "xsub", "pair"]
Change = Literal["connected", "lost"]

_KINDS: dict[str, int] = {
    "pub": zmq.PUB,
    "sub": zmq.SUB,
    "dealer": zmq.DEALER,
    "router": zmq.ROUTER,
    "xpub": zmq.XPUB,
    "xsub": zmq.XSUB,
    "pair": zmq.PAIR,
}
MAX_MESSAGE_BYTES = 96 << 20

_context: zmq.Context[zmq.Socket[bytes]] | None = None


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """This process's context, made at first use (after any fork)."""
    global _context
    if _context is None:
        _context = zmq.Context()
        _context.set(zmq.MAX_SOCKETS, 4096)
    return _context


class Link:
    """One socket. `identity` is required for DEALERs that a ROUTER has to know again."""

    def __init__(
        self,
        kind: Kind,
        *,
        identity: str | None = None,
        high_water: int = 10_000,
        heartbeat_ms: int = 0,
    ) -> None:
        self.kind = kind
        self.socket: zmq.Socket[bytes] = context().socket(_KINDS[kind])
        self._locks: list[IO[bytes]] = []
        self._paths: list[str] = []
        self._monitor: zmq.Socket[bytes] | None = None
        self.on_sent: Callable[[], None] | None = None
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, high_water)
        self.socket.setsockopt(zmq.RCVHWM, high_water)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        if heartbeat_ms:
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, heartbeat_ms)
            self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * heartbeat_ms)
        if identity is not None:
            self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        if kind == "router":
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if kind == "xpub":
            self.socket.setsockopt(zmq.XPUB_VERBOSE, 1)

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """This link's socket, and its monitor where there is one."""
        return [self.socket] if self._monitor is None else [self.socket, self._monitor]

    def bind(self, address: str) -> str:
        """Bind, and return the address with its real port. An ipc path is locked first.

        Raises AlreadyRunning when another process holds the path.
        """
        if address.startswith("ipc://"):
            path = address[6:]
            lock = open(path + ".lock", "wb")  # noqa: SIM115 - held as long as the link
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.close()
                raise AlreadyRunning(f"another process serves {path}") from error
            self._locks.append(lock)
            self._paths.append(path)
        self.socket.bind(address)
        return cast(bytes, self.socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def connect(self, address: str) -> None:
        """Connect; ZeroMQ goes on trying for as long as the link is open."""
        self.socket.connect(address)

    def disconnect(self, address: str) -> None:
        """Forget an address; unknown ones are ignored."""
        try:
            self.socket.disconnect(address)
        except zmq.ZMQError:
            return

    def subscribe(self, prefix: str) -> None:
        """A SUB link hears topics that begin with `prefix`."""
        self.socket.setsockopt(zmq.SUBSCRIBE, prefix.encode())

    def send(self, *frames: bytes) -> bool:
        """Send at once or not at all: False when full, or the ROUTER knows no such peer."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=True)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.ETERM, zmq.ENOTSOCK):
                return False
            raise
        if self.on_sent is not None:
            self.on_sent()
        return True

    def receive(self) -> Frames | None:
        """The next message, or None when there is none now."""
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def manual_subscriptions(self) -> None:
        """An XPUB that decides itself, and whose one next send after each subscription message
        reaches that subscriber alone (XPUB_MANUAL_LAST_VALUE; decision 0001)."""
        self.socket.setsockopt(zmq.XPUB_MANUAL_LAST_VALUE, 1)

    def accept(self, prefix: bytes, *, wanted: bool) -> None:
        """On a manual XPUB: take (or drop) the subscription that was just received."""
        self.socket.setsockopt(zmq.SUBSCRIBE if wanted else zmq.UNSUBSCRIBE, prefix)

    def monitor(self) -> zmq.Socket[bytes]:
        """A socket that tells of this link's connections; see `read_change`."""
        if self._monitor is None:
            events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            self._monitor = self.socket.get_monitor_socket(events)
        return self._monitor

    def close(self) -> None:
        """Close now, drop what is unsent, give up locks and paths."""
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close(0)
        self.socket.close(0)
        for path, lock in zip(self._paths, self._locks, strict=True):
            for name in (path, path + ".lock"):
                if os.path.exists(name):
                    os.unlink(name)
            lock.close()
        self._locks, self._paths = [], []


def read_change(monitor: zmq.Socket[bytes]) -> Change | None:
    """The next change of a monitored link, or None."""
    try:
        frames = monitor.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None
    event = cast(dict[str, Any], parse_monitor_message(frames))["event"]
    return "connected" if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else "lost"


def fileno_of(socket: zmq.Socket[bytes]) -> int:
    """The descriptor whose edge says that something may have happened on the socket."""
    return cast(int, socket.getsockopt(zmq.FD))
