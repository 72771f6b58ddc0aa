"""Talks to ZeroMQ's CURVE (rfc.zeromq.org/spec/26): sets the keys of one link and replaces them
during a rotation.

A server has one key. To change its key, a server must drop its connections; the clients then
reconnect immediately. A client tries the valid keys in turn. If a server does not admit the client,
ZeroMQ stops trying for good; then this module connects again. `bus.links.transport` has everything
else about links.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import cast

import zmq
from zmq.utils import z85

from bus.links.security import CurveKeys, Security, Server
from bus.process.clock import now
from bus.wire.errors import PortTaken
from bus.wire.ids import NodeId

_STRANGE = "the handshake failed: the other side has a different cluster key or none"
FAILED: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: _STRANGE,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: _STRANGE,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the other side refuses this node",
}


def public_key(secret: bytes) -> bytes:
    """Return the Curve25519 public key (32 bytes) of a secret one."""
    return z85.decode(zmq.curve_public(z85.encode(secret)))


def bind(socket: zmq.Socket[bytes], address: str) -> str:
    """Bind a socket, and return the address with its real port. Raises PortTaken."""
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise PortTaken(f"{address}: {error.strerror}") from error
    return cast(bytes, socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()


class LinkKeys:
    """CURVE keys of one socket: one server key per bound address, one client key per remote
    server."""

    def __init__(self, socket: zmq.Socket[bytes], security: Security) -> None:
        self._socket = socket
        self._security = security
        self._served: dict[str, bytes] = {}
        self._servers: dict[str, Server] = {}

    def serve(self, address: str) -> str:
        """Bind with the current key. Return the address with its real port. Raises PortTaken."""
        if not self._served:
            self._security.enter()
        secret = self._security.serving()
        try:
            bound = self._bind(address, secret)
        except BaseException:
            if not self._served:
                self._security.leave()
            raise
        self._served[bound] = secret
        return bound

    def reach(self, address: str, peer: NodeId | None) -> None:
        """Connect with the first key that is valid for `peer`."""
        first = self._security.reaching(peer)[0]
        self._servers[address] = Server(peer, first, now())
        self._connect(address, first)

    def forget(self, address: str) -> None:
        """Stop trying keys for the server at an address."""
        self._servers.pop(address, None)

    def note_event(self, event: int, address: str) -> bool:
        """Process an event of the socket's ZeroMQ monitor. After a failed handshake, log it and try
        another key. Return whether the event made or ended a connection."""
        is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        server = self._servers.get(address)
        if server is not None:
            server.is_given_up = not is_up and event != zmq.EVENT_CONNECT_RETRIED
        if event in FAILED:
            self._security.refused(address, FAILED[event])
            if server is not None:
                valid = self._security.reaching(server.peer)
                chosen = server.other_keys(valid, now())
                if chosen is not None:
                    self._try(address, server, chosen)
        if event in FAILED or event == zmq.EVENT_CONNECT_RETRIED:
            return False
        if server is None:
            return True
        was_up, server.is_up = server.is_up, is_up
        return was_up or is_up

    def renew(self, is_busy: Callable[[], bool]) -> bool:
        """Connect again to servers that ZeroMQ has stopped trying. If the key of this node has
        changed and the link is not busy, listen with the new key. Return False if that must be
        tried again soon."""
        for address, server in self._servers.items():
            if server.is_given_up:
                self._try(address, server, server.used)
        if is_busy():
            return True
        secret = self._security.serving()
        for address, used in self._served.items():
            if used == secret:
                continue
            with contextlib.suppress(zmq.ZMQError):
                self._socket.unbind(address)
            try:
                self._bind(address, secret)
            except PortTaken:
                return False
            self._served[address] = secret
        return True

    def close(self) -> None:
        """Unregister from the authenticator, so that no client is admitted any more."""
        if self._served:
            self._security.leave()
        self._served, self._servers = {}, {}

    def _try(self, address: str, server: Server, keys: CurveKeys) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disconnect(address)
        server.used, server.tried_at, server.is_given_up = keys, now(), False
        self._connect(address, keys)

    def _bind(self, address: str, secret: bytes) -> str:
        try:
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.ZAP_DOMAIN, self._security.domain.encode())
            self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            return bind(self._socket, address)
        finally:
            self._plain()

    def _connect(self, address: str, keys: CurveKeys) -> None:
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server_public)
        self._socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        self._socket.connect(address)
        self._plain()

    def _plain(self) -> None:
        """Switch CURVE off for the next bind or connect; ZeroMQ reads the options at that moment.
        (A ZAP domain can't be unset, so the authenticator also admits ipc clients.)"""
        self._socket.setsockopt(zmq.CURVE_SERVER, 0)
