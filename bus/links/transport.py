"""Talks to ZeroMQ: wraps each socket in a link that never blocks. Only `bus.links` uses ZeroMQ.

A send that would block returns False. The caller decides what to do then: telemetry drops, control
repeats, tokens have credit. Every link sets LINGER 0 and size limits. A lock file guards each bound
ipc path, because a second bind would take the path silently. A link that a reactor watches binds
its ipc path again if its file was removed (decision 0080). With `security` every TCP connection of
a link is CURVE (rfc.zeromq.org/spec/26); without it TCP is plain (`bus.links.curve`). Without
`security`, or with the machine key, a link accepts and makes only connections within this machine.
The loops that read links are in `bus.links.reactor`.
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
from bus.links.host_names import HostNames, NamedServers, has_name
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
"""A connection attempt that takes longer is given up and repeated. The kernel doubles its own retry
interval, so after a cut of a minute it may retry only half a minute after the cable is back."""
SECURE_HEARTBEAT_MS = 1_000
"""Interval of ZMTP heartbeats on links with a cluster's keys; they detect dead connections. A
monitored libzmq socket (4.3.5) that receives a damaged message stops reading without closing. A
pulled cable closes nothing either."""

_MONITORED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | sum(FAILED)
)

_names = HostNames()
_context: zmq.Context[zmq.Socket[bytes]] | None = None


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return this process's context, made at first use (after any fork)."""
    global _context
    if _context is None:
        _context = zmq.Context()
        _context.set(zmq.MAX_SOCKETS, 4096)
    return _context


class Link:
    """One socket. A DEALER needs an `identity` if its ROUTER has to recognise it. `tally`, if set,
    counts messages, except those of `receive_from`. `named`: the servers that it connects to by
    name.

    `security` is for TCP only: ipc and inproc stay plain. A reactor must watch a secure link,
    because it also reads the link's monitor: then refusals are logged and other keys tried.
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
        self.named = NamedServers(_names, self._reach, self.disconnect)
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
        """Return this link's socket, and its monitor if there is one."""
        return [self.socket] if self._monitor is None else [self.socket, self._monitor]

    def bind(self, address: str) -> str:
        """Bind, and return the address with its real port. An ipc path is locked first.

        Raises AlreadyRunning if another process has the path, PortTaken if the address can't be
        bound, Exposed for TCP beyond loopback without a cluster key.
        """
        self._check_is_here(address)
        if address.startswith("tcp://") and self._keys is not None:
            return self._keys.serve(address)
        if address.startswith("ipc://"):
            self._paths.append(_HeldPath(address.removeprefix("ipc://")))
        return bind(self.socket, address)

    def reopen(self) -> list[str]:
        """Bind again each ipc path whose file was removed, and return those paths. Existing
        connections stay open. A path is skipped if its folder is missing, or if another process has
        taken the path."""
        opened: list[str] = []
        for held in self._paths:
            with contextlib.suppress(OSError, AlreadyRunning, PortTaken):
                held.hold_again()
                if not os.path.exists(held.path):
                    # The old listener stays with the link: if it ended, it would remove the file.
                    bind(self.socket, f"ipc://{held.path}")
                    opened.append(held.path)
        return opened

    def connect(self, address: str, *, peer: NodeId | None = None) -> None:
        """Connect; ZeroMQ retries for as long as the link is open. ZeroMQ never looks a host name
        up: `named` does.

        Over TCP with a node's security, only `peer` gets a connection: it must prove its id. Raises
        Exposed for TCP beyond loopback without a cluster key.
        """
        self._check_is_here(address)
        if has_name(address):
            self.named.add(address, peer)
        else:
            self._reach(address, peer)

    def disconnect(self, address: str) -> None:
        """Disconnect from an address; an unknown one is ignored."""
        self.named.drop(address)
        if self._keys is not None:
            self._keys.forget(address)
        with contextlib.suppress(zmq.ZMQError):
            self.socket.disconnect(address)

    def unbind(self, address: str) -> None:
        """Stop listening at an address at once; connections stay."""
        self.socket.unbind(address)

    def subscribe(self, prefix: str) -> None:
        """Subscribe a SUB link to topics that begin with `prefix`."""
        self.socket.setsockopt(zmq.SUBSCRIBE, prefix.encode())

    def unsubscribe(self, prefix: str) -> None:
        """Unsubscribe a SUB link from topics that begin with `prefix`."""
        self.socket.setsockopt(zmq.UNSUBSCRIBE, prefix.encode())

    def send(self, *frames: bytes) -> bool:
        """Send without blocking. Return False, with nothing sent, if the queue is full or the
        ROUTER has no such peer."""
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
        """Return the next message; None if no message is waiting."""
        if not _is_readable(self.socket):
            return None
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        if self.tally is not None:
            self.tally.received(frames)
        return frames

    def receive_from(self) -> tuple[NodeId | None, Frames] | None:
        """Return the next message and the node that sent it, as its key proved. The node is None
        for a sender without proof (a plain connection, or a first hello: `DoorSecurity`). Return
        None if no message is waiting. Only for links that bind: ZeroMQ names the clients of a
        socket, but not its servers."""
        if not _is_readable(self.socket):
            return None
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return _proved(frames[-1]), [frame.bytes for frame in frames]

    def manual_subscriptions(self) -> None:
        """Let an XPUB decide about subscriptions. Its next send after each subscription message
        then reaches only that subscriber (XPUB_MANUAL_LAST_VALUE; decision 0001)."""
        self.socket.setsockopt(zmq.XPUB_MANUAL_LAST_VALUE, 1)

    def accept(self, prefix: bytes, *, wanted: bool) -> None:
        """Accept (or drop) the subscription that a manual XPUB has just received."""
        self.socket.setsockopt(zmq.SUBSCRIBE if wanted else zmq.UNSUBSCRIBE, prefix)

    def monitor(self) -> zmq.Socket[bytes]:
        """Return a socket that is readable when `read_changes` has an event to read."""
        if self._monitor is None:
            self._monitor = self.socket.get_monitor_socket(_MONITORED)
        return self._monitor

    def read_changes(self) -> None:
        """Read the events of the monitor. Connections made and lost go to `listeners`, failed
        handshakes to `security`; after a failure another key is tried."""
        while self._monitor is not None and not self._monitor.closed:
            try:
                frames = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            event_fields = cast(dict[str, Any], parse_monitor_message(frames))
            event, address = (
                event_fields["event"],
                bytes(event_fields["endpoint"]).decode(errors="replace"),
            )
            if self._keys is not None:
                if not self._keys.note_event(event, address):
                    continue
            elif event in FAILED or event == zmq.EVENT_CONNECT_RETRIED:
                continue
            is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            for listener in self.listeners:
                listener("connected" if is_up else "lost")

    def renew(self) -> bool:
        """Serve with the current key, and connect again where ZeroMQ has stopped trying. Return
        False if serving with the current key must be tried again soon.

        A server must drop its connections to change its key (the clients reconnect immediately). So
        while `is_busy` is true, the server keeps its old key.
        """
        return self._keys is None or self._keys.renew(self.is_busy)

    def close(self) -> None:
        """Close now; drop unsent messages; release locks and paths."""
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

    def _reach(self, address: str, peer: NodeId | None) -> None:
        if self._keys is not None and address.startswith("tcp://"):
            self.monitor()  # or a handshake that ends before the link is watched is missed
            self._keys.reach(address, peer)
        else:
            self.socket.connect(address)

    def _check_is_here(self, address: str) -> None:
        """Raise Exposed if the address needs a cluster key that this link does not have."""
        is_bound_here = self.security is None or self.security.is_local
        if is_bound_here and address.startswith("tcp://") and not is_loopback(host_of(address)):
            raise Exposed(
                f"{address} is reachable from other machines, so a cluster key is needed: run "
                "`shoal keys init` at the first node, `shoal keys join` at the others"
            )


class _HeldPath:
    """An ipc path, and this process's lock beside it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = self._locked()

    def hold_again(self) -> None:
        """Lock the path's lock file again if that file was removed. Raises AlreadyRunning,
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
    """Return the descriptor whose edge signals a possible event on the socket."""
    return cast(int, socket.getsockopt(zmq.FD))


def _is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message is waiting. Cheaper than a `recv` that raises `zmq.Again`, which
    would end each drain of a link."""
    return bool(cast(int, socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
