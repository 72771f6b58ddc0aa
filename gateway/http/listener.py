"""Talks to the operating system: opens the HTTP port, or a Unix socket instead of the port.

The default port is in the range of ephemeral ports, so a client connection of another program can
occupy it for a moment. If the port is in use, opening is retried for some seconds. After that, the
error names the process that uses the port.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time

from bus.process.clock import now
from bus.process.endpoints import LOOPBACKS
from bus.process.ports import addresses_of, port_owner
from bus.wire.errors import Unavailable

RETRY_S = 5.0
BACKLOG = 2048
SEND_BUFFER_BYTES = 65536
"""Send buffer of the listening socket, which accepted sockets inherit. The system's default would
buffer minutes of tokens for a client that does not read."""


def open_listeners(host: str, port: int, *, retry_s: float = RETRY_S) -> list[socket.socket]:
    """Return a listening socket for each address of `host`. If the port is still in use after
    `retry_s`, raises Unavailable, which names the address and the process that uses the port."""
    opened: list[socket.socket] = []
    try:
        for address in addresses_of(host):
            opened += [_open_listener(address, port, retry_s)]
    except Unavailable as error:
        for listener in opened:
            listener.close()
        if not opened:
            raise
        alone = f'{error}; http_host = "{LOOPBACKS[0]}" listens only at that address'
        raise Unavailable(alone) from error
    return opened


def _open_listener(host: str, port: int, retry_s: float) -> socket.socket:
    give_up_at = now() + retry_s
    while True:
        try:
            return _listen(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}") from error
            if now() >= give_up_at:
                owner = port_owner(port, host) or "another process (of another user, or just gone)"
                raise Unavailable(
                    f"port {port} on {host} is in use by {owner}; stop it, or set "
                    "http_port (SHOAL_HTTP_PORT) to another"
                ) from error
        time.sleep(0.1)


def open_socket(path: str) -> socket.socket:
    """Return a listening Unix socket at a path, which only this user can open (mode 0600). The
    socket of an earlier gateway at that path is replaced. This is safe, because the caller holds
    the lock that allows only one gateway. Raises Unavailable."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
        prepare(listener, BACKLOG)
    except OSError as error:
        listener.close()
        raise Unavailable(f"cannot listen at {path}: {error.strerror}") from error
    return listener


def prepare(listener: socket.socket, backlog: int) -> None:
    """Set the send buffer and the backlog of a listening socket. Call this again after asyncio's
    `create_server`, which overwrites the backlog."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    listener.listen(backlog)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        prepare(listener, BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
