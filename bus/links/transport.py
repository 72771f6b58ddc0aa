"""Talks to ZeroMQ, and is its only home: sockets as links that never block.

A send that cannot be done at once returns False, and what to do then is the caller's promise to
keep (telemetry drops, control repeats, tokens have credit). Every link sets LINGER 0 and size
caps. A bound ipc path is guarded by a lock file, for a second bind would steal it in silence.
With `security` every TCP connection of a link is CURVE (rfc.zeromq.org/spec/26); without, TCP
is plain and stays on this machine. The loops that drain links are in `bus.links.reactor`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import IO, Any, Literal, cast

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from bus.links.security import CurveKeys, Security, Server
from bus.process.clock import now
from bus.process.endpoints import host_of, is_loopback
from bus.wire.errors import AlreadyRunning, Exposed, PortTaken
from bus.wire.ids import NodeId

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
HANDSHAKE_MS = 2_000
CONNECT_MS = 1_500
"""A connection that is not made by then is tried afresh. The kernel's own patience doubles with
each try: after a cut of a minute it may look again half a minute after the cable is back."""
SECURE_HEARTBEAT_MS = 1_000
"""Links with keys always have ZMTP heartbeats: a monitored libzmq socket that meets a damaged
message stops reading and does not close (4.3.5), and cables are pulled without a farewell."""

_STRANGE = "the handshake failed: the other side has another cluster key, or none"
_FAILED: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: _STRANGE,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: _STRANGE,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the other side does not admit this node",
}
_MONITORED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | sum(_FAILED)
)

_context: zmq.Context[zmq.Socket[bytes]] | None = None


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """This process's context, made at first use (after any fork)."""
    global _context
    if _context is None:
        _context = zmq.Context()
        _context.set(zmq.MAX_SOCKETS, 4096)
    return _context


def public_key(secret: bytes) -> bytes:
    """The Curve25519 public key (32 bytes) of a secret one."""
    return z85.decode(zmq.curve_public(z85.encode(secret)))


class Link:
    """One socket. `identity` is required for DEALERs that a ROUTER has to know again.

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
        self.socket: zmq.Socket[bytes] = context().socket(_KINDS[kind])
        self._locks: list[IO[bytes]] = []
        self._paths: list[str] = []
        self._served: dict[str, bytes] = {}
        self._servers: dict[str, Server] = {}
        self._monitor: zmq.Socket[bytes] | None = None
        self.on_sent: Callable[[], None] | None = None
        self.is_busy: Callable[[], bool] = lambda: False
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, high_water)
        self.socket.setsockopt(zmq.RCVHWM, high_water)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        if security is not None:
            heartbeat_ms = heartbeat_ms or SECURE_HEARTBEAT_MS
            max_bytes = min(max_bytes, security.max_bytes)
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
        """This link's socket, and its monitor where there is one."""
        return [self.socket] if self._monitor is None else [self.socket, self._monitor]

    def bind(self, address: str) -> str:
        """Bind, and return the address with its real port. An ipc path is locked first.

        Raises AlreadyRunning when another process holds the path, PortTaken when the address
        cannot be bound, Exposed for TCP beyond loopback without security.
        """
        if address.startswith("tcp://"):
            return self._bind_tcp(address)
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
        self._bind(address)
        return self._endpoint()

    def _bind_tcp(self, address: str) -> str:
        if self.security is None:
            _check_is_here(address)
            self._bind(address)
            return self._endpoint()
        if not self._served:
            self.security.enter()
        secret = self.security.serving()
        try:
            self._serve_with(secret)
            self._bind(address)
        except BaseException:
            if not self._served:
                self.security.leave()
            raise
        finally:
            self._plain()
        bound = self._endpoint()
        self._served[bound] = secret
        return bound

    def _bind(self, address: str) -> None:
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            raise PortTaken(f"{address}: {error.strerror}") from error

    def _endpoint(self) -> str:
        return cast(bytes, self.socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def connect(self, address: str, *, peer: NodeId | None = None) -> None:
        """Connect; ZeroMQ goes on trying for as long as the link is open.

        Over TCP with a node's security, `peer` is the node that has to be there: another one, or
        one that cannot prove to be it, gets no connection. Raises Exposed for TCP beyond loopback
        without security.
        """
        if self.security is None or not address.startswith("tcp://"):
            _check_is_here(address)
            self.socket.connect(address)
            return
        first = self.security.reaching(peer)[0]
        self._servers[address] = Server(peer, first, now())
        self._reach(address, first)

    def disconnect(self, address: str) -> None:
        """Forget an address; unknown ones are ignored."""
        self._servers.pop(address, None)
        try:
            self.socket.disconnect(address)
        except zmq.ZMQError:
            return

    def unbind(self, address: str) -> None:
        """Stop listening at an address at once; connections stay."""
        self.socket.unbind(address)

    def subscribe(self, prefix: str) -> None:
        """A SUB link hears topics that begin with `prefix`."""
        self.socket.setsockopt(zmq.SUBSCRIBE, prefix.encode())

    def unsubscribe(self, prefix: str) -> None:
        """A SUB link hears topics that begin with `prefix` no more."""
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
        if self.on_sent is not None:
            self.on_sent()
        return True

    def receive(self) -> Frames | None:
        """The next message, or None when there is none now."""
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def receive_from(self) -> tuple[NodeId | None, Frames] | None:
        """The next message with the node that sent it, as its key proved it; None is somebody
        unproved (a plain connection, or one through the door). For links that serve: what comes
        from a server carries no name."""
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return _proved(frames[-1]), [frame.bytes for frame in frames]

    def manual_subscriptions(self) -> None:
        """An XPUB that decides itself, and whose one next send after each subscription message
        reaches that subscriber alone (XPUB_MANUAL_LAST_VALUE; decision 0001)."""
        self.socket.setsockopt(zmq.XPUB_MANUAL_LAST_VALUE, 1)

    def accept(self, prefix: bytes, *, wanted: bool) -> None:
        """On a manual XPUB: take (or drop) the subscription that was just received."""
        self.socket.setsockopt(zmq.SUBSCRIBE if wanted else zmq.UNSUBSCRIBE, prefix)

    def monitor(self) -> zmq.Socket[bytes]:
        """A socket that is readable when `read_changes` has something to say."""
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
            is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            server = self._servers.get(address)
            if server is not None:
                server.is_given_up = not is_up and event != zmq.EVENT_CONNECT_RETRIED
            if event in _FAILED:
                self._failed(address, _FAILED[event])
            if event in _FAILED or event == zmq.EVENT_CONNECT_RETRIED:
                continue
            if server is not None:
                was_up, server.is_up = server.is_up, is_up
                if not (was_up or is_up):
                    continue
            for listener in self.listeners:
                listener("connected" if is_up else "lost")

    def renew(self) -> bool:
        """Serve with the key that is current now, and try again where ZeroMQ has given up;
        False when the first has to be tried again soon.

        A server has one key and cannot change it without dropping its connections (they come back
        in a moment), so while `is_busy` says so it keeps the one it has.
        """
        for address, server in self._servers.items():
            if server.is_given_up:
                self._try(address, server, server.used)
        if self.security is None or self.is_busy():
            return True
        secret = self.security.serving()
        for address, used in self._served.items():
            if used == secret:
                continue
            with contextlib.suppress(zmq.ZMQError):
                self.socket.unbind(address)
            try:
                self._serve_with(secret)
                self._bind(address)
            except PortTaken:
                return False
            finally:
                self._plain()
            self._served[address] = secret
        return True

    def _failed(self, address: str, why: str) -> None:
        if self.security is None:
            return
        self.security.refused(address, why)
        server = self._servers.get(address)
        if server is None:
            return
        chosen = server.other_keys(self.security.reaching(server.peer), now())
        if chosen is not None:
            self._try(address, server, chosen)

    def _try(self, address: str, server: Server, keys: CurveKeys) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self.socket.disconnect(address)
        server.used, server.tried_at, server.is_given_up = keys, now(), False
        self._reach(address, keys)

    def _serve_with(self, secret: bytes) -> None:
        assert self.security is not None
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self.socket.setsockopt(zmq.CURVE_SERVER, 1)
        self.socket.setsockopt(zmq.ZAP_DOMAIN, self.security.domain.encode())
        self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def _reach(self, address: str, keys: CurveKeys) -> None:
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server_public)
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        self.socket.connect(address)
        self._plain()

    def _plain(self) -> None:
        """Options count when a socket binds or connects: what comes next is plain again. (A
        domain cannot be unset: the authenticator lets ipc in.)"""
        self.socket.setsockopt(zmq.CURVE_SERVER, 0)

    def close(self) -> None:
        """Close now, drop what is unsent, give up locks and paths."""
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        self.socket.close(0)
        for path, lock in zip(self._paths, self._locks, strict=True):
            for name in (path, path + ".lock"):
                if os.path.exists(name):
                    os.unlink(name)
            lock.close()
        self._locks, self._paths = [], []
        if self._served and self.security is not None:
            self.security.leave()
        self._served, self._servers = {}, {}


def _check_is_here(address: str) -> None:
    if address.startswith("tcp://") and not is_loopback(host_of(address)):
        raise Exposed(
            f"{address} is not on this machine alone, so a cluster key is needed: "
            "`shoal keys init` at the first node, `shoal keys join` at the others"
        )


def _proved(frame: zmq.Frame) -> NodeId | None:
    try:
        user = str(frame.get("User-Id"))
    except zmq.ZMQError:
        return None
    return NodeId(user) if user else None


def fileno_of(socket: zmq.Socket[bytes]) -> int:
    """The descriptor whose edge says that something may have happened on the socket."""
    return cast(int, socket.getsockopt(zmq.FD))
