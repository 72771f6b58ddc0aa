"""Talks to ZeroMQ in a thread of its own: decides which clients may connect (ZAP,
rfc.zeromq.org/spec/27).

A process has one such thread and socket. The thread starts when the first link listens with
encryption keys, and ends when the last such link is closed. Each link that listens has a ZAP
domain, and each domain a gate: an object that decides about its clients. A refused client gets
status 400; its link retries after a second, because this node may know the client by then. (With
status 300 libzmq sends nothing, and both sides wait for the handshake's timeout.) Without this
thread no client is admitted, because every link with keys enforces its domain. If a link with keys
also binds over ipc, its ipc clients are checked by this thread, too, but their traffic is not
encrypted.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping, Sequence

from bus.links.reactor import BUDGET
from bus.links.security import Gate
from bus.links.transport import READABLE, Link, Poller
from bus.wire.topology import ip_in

ADDRESS = "inproc://zeromq.zap.01"
VERSION = b"1.0"
KEY_BYTES = 32


class Authenticator:
    """The gates of this process by ZAP domain, and the thread that answers ZAP requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[str, Gate] = {}
        self._users: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._link: Link | None = None
        self._wake = -1

    def enter(self, domain: str, gate: Gate) -> None:
        """Use `gate` for clients of `domain`. Call this once for each listening socket."""
        with self._lock:
            self._users[domain] = self._users.get(domain, 0) + 1
            self._gates[domain] = gate
            if self._thread is None:
                self._start()

    def leave(self, domain: str) -> None:
        """Record that one listening socket of `domain` is closed; the thread ends when the last one
        is."""
        with self._lock:
            left = self._users.get(domain, 0) - 1
            if left > 0:
                self._users[domain] = left
                return
            self._users.pop(domain, None)
            self._gates.pop(domain, None)
            if not self._users:
                self._stop()

    def close(self) -> None:
        """End the thread now, even while sockets still listen."""
        with self._lock:
            self._users.clear()
            self._gates.clear()
            self._stop()

    def _start(self) -> None:
        self._link = link = Link("router")
        link.bind(ADDRESS)
        read, self._wake = os.pipe()
        self._thread = threading.Thread(
            target=self._serve, args=(link, read), name="authenticator", daemon=True
        )
        self._thread.start()

    def _stop(self) -> None:
        if self._thread is None:
            return
        os.close(self._wake)
        self._thread.join()
        self._thread = self._link = None

    def _serve(self, link: Link, wake: int) -> None:
        poller = Poller()
        poller.register(link.socket, READABLE)
        poller.register(wake, READABLE)
        try:
            while wake not in dict(poller.poll()):
                for _ in range(BUDGET):
                    frames = link.receive()
                    if frames is None:
                        break
                    reply = answer(frames, self._gates)
                    if reply is not None:
                        link.send(*reply)
        finally:
            link.unbind(ADDRESS)
            link.close()
            os.close(wake)


def answer(frames: Sequence[bytes], gates: Mapping[str, Gate]) -> list[bytes] | None:
    """Return the reply to a ZAP request, which a ROUTER received as `frames`; None if they are not
    a ZAP request."""
    if len(frames) < 8 or frames[2] != VERSION:
        return None
    client, empty, version, request, domain, address, _, mechanism, *credentials = frames

    def reply(code: bytes, text: bytes, user: str = "") -> list[bytes]:
        """Return the reply to the request, with a ZAP status code and text. `user`: the name of an
        admitted client."""
        return [client, empty, version, request, code, text, user.encode(), b""]

    gate = gates.get(domain.decode(errors="replace"))
    if gate is not None and mechanism == b"NULL" and not _is_remote(address):
        return reply(b"200", b"this machine")
    if (
        gate is None
        or mechanism != b"CURVE"
        or [len(credential) for credential in credentials] != [KEY_BYTES]
    ):
        return reply(b"400", b"not admitted")
    try:
        user = gate.admit(credentials[0])
    except Exception as error:
        gate.refused(address.decode(errors="replace"), f"internal error: {type(error).__name__}")
        return reply(b"400", b"not admitted")
    if user is None:
        why = "a cluster member that is unknown here"
        gate.refused(address.decode(errors="replace"), why)
        return reply(b"400", b"not admitted")
    return reply(b"200", b"admitted", user)


def _is_remote(address: bytes) -> bool:
    """Return whether a ZAP address is a network address; over ipc it is empty or `:uid:gid:pid`."""
    return ip_in(address.decode(errors="replace")) is not None


AUTHENTICATOR = Authenticator()
"""The authenticator of this process. Its thread starts with the first socket that listens with
keys."""
atexit.register(AUTHENTICATOR.close)
