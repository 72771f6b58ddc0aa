"""Talks to ZeroMQ: sockets as links that never block. `bus.links` is its only home.

A send that cannot be done at once returns False, and what to do then is the caller's promise to
keep (telemetry drops, control repeats, tokens have credit). Every link sets LINGER 0 and size
caps. A bound ipc path is guarded by a lock file, for a second bind would steal it in silence; a
link that a reactor watches binds it anew when its file was removed (decision 0080).
With `security` every TCP connection of a link is CURVE (rfc.zeromq.org/spec/26); without, TCP
is plain (`bus.links.curve`). Without, and with the machine key, it stays on this machine. The
loops that drain links are in `bus.links.reactor`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import IO, Any, Literal, cast

import zmq
from zmq.utils.monitor import parse_monitor_message

from bus.links.curve import FAILED, LinkKeys, bind
from bus.links.security import Security
from bus.links.traffic import Tally
from bus.process.endpoints import host_of, is_loopback
from bus.process.identity import lies_at
from bus.wire.errors import AlreadyRunning, Exposed, PortTaken
from bus.wire.ids import NodeId

Frames = list[bytes]
Poller = zmq.Poller
READABLE: int = zmq.POLLIN
Socket = zmq.Socket[bytes]
Kind = Literal["pub", "sub", "dealer", "router", "xpub", "xsub", "pair"]
Change = Literal["connected", "lost"]

MAX_MESSAGE_BYTES = 96 << 20
HANDSHAKE_MS = 2_000
CONNECT_MS = 1_500
"""A connection that is not made by then is tried afresh. The kernel's own patience doubles with
each try: after a cut of a minute it may look again half a minute after the cable is back."""
SECURE_HEARTBEAT_MS = 1_000
"""Links with a cluster's keys always have ZMTP heartbeats: a monitored libzmq socket that meets a
damaged message stops reading and does not close (4.3.5), and cables are pulled without a
farewell."""

_MONITORED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | sum(FAILED)
)

_context: zmq.Context[zmq.Socket[bytes]] | None = None


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return this process's context, made at first use (after any fork)."""
    global _context
    if _context is None:
        _context = zmq.Context()
        _context.set(zmq.MAX_SOCKETS, 4096)
    return _context


class Link:
    """One socket. `identity` is required for DEALERs that a ROUTER has to know again.
    `tally` counts what crosses, where it is set; not what `receive_from` takes.

    `security` is for TCP alone: ipc and inproc stay plain. A secure link has to be watched by a
    reactor, which also reads its monitor: refusals are logged and other keys tried from there.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        identity: str | None = None,
        high_water: int = 10_000,
        heartbeat_ms: int = 0,
        max_bytes: int = MAX_MESSAGE_BYTES,
        security: Security | None = None,
    ) -> None:
        self.kind = kind
        self.security = security
        self.listeners: list[Callable[[Change], None]] = []
        self.socket: zmq.Socket[bytes] = context().socket(zmq.SocketType[kind.upper()])
        self._paths: list[_HeldPath] = []
        self._keys = None if security is None else LinkKeys(self.socket, security)
        self._monitor: zmq.Socket[bytes] | None = None
        self.on_sent: Callable[[], None] | None = None
        self.tally: Tally | None = None
        self.is_busy: Callable[[], bool] = lambda: False
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.set_hwm(high_water)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        if security is not None:
            max_bytes = min(max_bytes, security.max_bytes)
            if not security.is_local:
                heartbeat_ms = heartbeat_ms or SECURE_HEARTBEAT_MS
        self.socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
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
        """Return this link's socket, and its monitor where there is one."""
        return [self.socket] if self._monitor is None else [self.socket, self._monitor]

    def bind(self, address: str) -> str:
        """Bind, and return the address with its real port. An ipc path is locked first.

        Raises AlreadyRunning when another process holds the path, PortTaken when the address
        cannot be bound, Exposed for TCP beyond loopback without a cluster key.
        """
        self._check_is_here(address)
        if address.startswith("tcp://") and self._keys is not None:
            return self._keys.serve(address)
        if address.startswith("ipc://"):
            self._paths.append(_HeldPath(address.removeprefix("ipc://")))
        return bind(self.socket, address)

    def reopen(self) -> list[str]:
        """Bind anew each ipc path whose file was removed, and return those paths. Connections stay.
        Nothing is done while the folder is gone, too, or where another process has the path."""
        opened: list[str] = []
        for held in self._paths:
            with contextlib.suppress(OSError, AlreadyRunning, PortTaken):
                held.hold_again()
                if not os.path.exists(held.path):
                    # The old listener stays with the link: as it ends it would remove the file.
                    bind(self.socket, f"ipc://{held.path}")
                    opened.append(held.path)
        return opened

    def connect(self, address: str, *, peer: NodeId | None = None) -> None:
        """Connect; ZeroMQ goes on trying for as long as the link is open.

        Over TCP with a node's security, `peer` is the node that has to be there: another one, or
        one that cannot prove to be it, gets no connection. Raises Exposed for TCP beyond loopback
        without a cluster key.
        """
        self._check_is_here(address)
        if self._keys is not None and address.startswith("tcp://"):
            self._keys.reach(address, peer)
            return
        self.socket.connect(address)

    def disconnect(self, address: str) -> None:
        """Forget an address; unknown ones are ignored."""
        if self._keys is not None:
            self._keys.forget(address)
        with contextlib.suppress(zmq.ZMQError):
            self.socket.disconnect(address)

    def unbind(self, address: str) -> None:
        """Stop listening at an address at once; connections stay."""
        self.socket.unbind(address)

    def subscribe(self, prefix: str) -> None:
        """Have a SUB link hear topics that begin with `prefix`."""
        self.socket.setsockopt(zmq.SUBSCRIBE, prefix.encode())

    def unsubscribe(self, prefix: str) -> None:
        """Have a SUB link hear topics that begin with `prefix` no more."""
        self.socket.setsockopt(zmq.UNSUBSCRIBE, prefix.encode())

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
        if self.tally is not None:
            self.tally.sent(frames)
        if self.on_sent is not None:
            self.on_sent()
        return True

    def receive(self) -> Frames | None:
        """Return the next message, None when there is none now."""
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        if self.tally is not None:
            self.tally.received(frames)
        return frames

    def receive_from(self) -> tuple[NodeId | None, Frames] | None:
        """Return the next message with the node that sent it, as its key proved it, or with None
        for a sender unproved (a plain connection, or one through the door); None without a
        message. For links that serve: what comes from a server carries no name."""
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return _proved(frames[-1]), [frame.bytes for frame in frames]

    def manual_subscriptions(self) -> None:
        """Make an XPUB decide itself: its one next send after each subscription message then
        reaches that subscriber alone (XPUB_MANUAL_LAST_VALUE; decision 0001)."""
        self.socket.setsockopt(zmq.XPUB_MANUAL_LAST_VALUE, 1)

    def accept(self, prefix: bytes, *, wanted: bool) -> None:
        """Take (or drop) the subscription that a manual XPUB has just received."""
        self.socket.setsockopt(zmq.SUBSCRIBE if wanted else zmq.UNSUBSCRIBE, prefix)

    def monitor(self) -> zmq.Socket[bytes]:
        """Return a socket that is readable when `read_changes` has something to say."""
        if self._monitor is None:
            self._monitor = self.socket.get_monitor_socket(_MONITORED)
        return self._monitor

    def read_changes(self) -> None:
        """Read what the monitor has: tell `listeners` of connections made and lost, `security` of
        handshakes that failed, and try another key where one did."""
        while self._monitor is not None and not self._monitor.closed:
            try:
                frames = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            told = cast(dict[str, Any], parse_monitor_message(frames))
            event, address = told["event"], bytes(told["endpoint"]).decode(errors="replace")
            if self._keys is not None:
                if not self._keys.noticed(event, address):
                    continue
            elif event in FAILED or event == zmq.EVENT_CONNECT_RETRIED:
                continue
            is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            for listener in self.listeners:
                listener("connected" if is_up else "lost")

    def renew(self) -> bool:
        """Serve with the key that is current now, and try again where ZeroMQ has given up;
        False when the first has to be tried again soon.

        A server has one key and cannot change it without dropping its connections (they come back
        in a moment), so while `is_busy` says so it keeps the one it has.
        """
        return self._keys is None or self._keys.renew(self.is_busy)

    def close(self) -> None:
        """Close now, drop what is unsent, give up locks and paths."""
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        self.socket.close(0)
        for held in self._paths:
            held.release()
        self._paths = []
        if self._keys is not None:
            self._keys.close()

    def _check_is_here(self, address: str) -> None:
        """Raise Exposed for what only a cluster key may reach."""
        is_bound_here = self.security is None or self.security.is_local
        if is_bound_here and address.startswith("tcp://") and not is_loopback(host_of(address)):
            raise Exposed(
                f"{address} is reachable from other machines, so a cluster key is needed: run "
                "`shoal keys init` at the first node, `shoal keys join` at the others"
            )


class _HeldPath:
    """An ipc path, and the lock beside it that this process holds."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = self._locked()

    def hold_again(self) -> None:
        """Lock the file anew where the one that is locked was removed. Raises AlreadyRunning,
        OSError."""
        if lies_at(self._lock, f"{self.path}.lock"):
            return
        lock, self._lock = self._lock, self._locked()
        lock.close()

    def release(self) -> None:
        """Remove the socket's file and the lock."""
        for name in (self.path, f"{self.path}.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        self._lock.close()

    def _locked(self) -> IO[bytes]:
        lock = open(f"{self.path}.lock", "wb")  # noqa: SIM115 - held as long as the link
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise AlreadyRunning(f"another process already listens at {self.path}") from error
        return lock


def _proved(frame: zmq.Frame) -> NodeId | None:
    try:
        user = str(frame.get("User-Id"))
    except zmq.ZMQError:
        return None
    return NodeId(user) if user else None


def fileno_of(socket: zmq.Socket[bytes]) -> int:
    """Return the descriptor whose edge says that something may have happened on the socket."""
    return cast(int, socket.getsockopt(zmq.FD))
