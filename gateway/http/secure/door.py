"""Talks to clients before HTTP begins: accepts the connections of a listening socket and starts TLS
on them.

asyncio's servers neither log nor count failed handshakes, and they wait a minute for each
handshake. Here, the first byte of a connection shows whether the client speaks TLS or plain HTTP;
plain HTTP gets an error. The first byte and the handshake must arrive within `headers_s`, and the
connection counts towards the limit during that time. Each kind of failure is logged at most once a
minute.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
# (gunicorn carries no type information)
from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Any

from bus.process.logs import Log
from gateway.http.connection import Connection
from gateway.http.secure.served import ServedPair
from gateway.view.options import Options

HANDSHAKE = b"\x16"
"""The first byte of a TLS connection: the type of a handshake record (RFC 8446, 5.1)."""
GOODBYE_S = 10.0
"""Time limit for the TLS shutdown: sending the last bytes and receiving the peer's close
notification."""
PAUSE_S = 1.0
TOLD_EVERY_S = 60.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PLAIN = "this port speaks HTTPS, not plain HTTP: use an https:// URL\n"


class SecureConnection(Connection):
    """A TLS connection, which counts towards the limit from the moment when it was accepted."""

    def connection_made(self, transport: Any) -> None:
        """Accept the connection. It was counted when it was accepted, and the base class counts it
        again. So this method first subtracts one from the count."""
        self.worker.nr_conns -= 1
        super().connection_made(transport)


class PlainConnection(SecureConnection):
    """A plain HTTP connection to the HTTPS port, which is answered with an error."""

    def _feed_callback_parser(self, data: bytes) -> Any:
        self._refuse(400, _PLAIN)
        return False


class Door:
    """Replaces asyncio's server for one listening socket in one HTTP process."""

    def __init__(self, worker: Any, listener: socket.socket, served: ServedPair, log: Log) -> None:
        """Start to accept connections, on the event loop of the worker."""
        self._worker = worker
        self._options: Options = worker.app.options
        self._loop: asyncio.AbstractEventLoop = worker.loop
        self._listener = listener
        self._served = served
        self._log = log
        self._told_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._is_open = True
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Stop accepting connections. Handshakes that have begun are completed."""
        self._is_open = False
        self._loop.remove_reader(self._listener)

    def _listen(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process was faster, or the client is gone
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            self._tell("cannot accept connections", str(error.strerror), "")
            self._loop.remove_reader(self._listener)
            self._loop.call_later(PAUSE_S, self._listen)
            return
        if len(self._opening) >= self._options.max_connections:
            connection.close()
            self._tell("too many TLS handshakes at once: connections are closed", "", address[0])
            return
        self._worker.nr_conns += 1
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection, str(address[0])))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, client: str) -> None:
        due_at = self._loop.time() + self._options.headers_s
        made: SecureConnection | None = None
        try:
            async with asyncio.timeout_at(due_at):
                first = await self._first_byte(connection)
            if not first:
                return
            is_tls = first == HANDSHAKE
            made = (SecureConnection if is_tls else PlainConnection)(self._worker)
            if not is_tls:
                self._tell("answered plain HTTP on the HTTPS port with an error", "", client)
                await self._loop.connect_accepted_socket(lambda: made, connection)
                return
            await self._loop.connect_accepted_socket(
                lambda: made,
                connection,
                ssl=self._served.pair.context,
                ssl_handshake_timeout=max(0.1, due_at - self._loop.time()),
                ssl_shutdown_timeout=GOODBYE_S,
            )
        except (TimeoutError, OSError) as error:
            self._tell("a TLS handshake failed", _why(error), client)
        finally:
            if made is None:
                connection.close()
            if made is None or made.transport is None:
                self._worker.nr_conns -= 1

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """Return the first byte without consuming it; b"" if the client disconnected."""
        came: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(connection, lambda: came.done() or came.set_result(None))
        try:
            await came
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)

    def _tell(self, message: str, why: str, client: str) -> None:
        now = self._loop.time()
        self._untold[message] = self._untold.get(message, 0) + 1
        if now - self._told_at.get(message, -TOLD_EVERY_S) < TOLD_EVERY_S:
            return
        self._told_at[message] = now
        reason = {"why": why} if why else {}
        times = self._untold.pop(message)
        self._log.warning(message, **reason, client=client, times=times)


def _why(error: OSError | TimeoutError) -> str:
    """Return the reason why a handshake failed, as text for the log."""
    if isinstance(error, ssl.SSLError):
        text = (error.reason or str(error)).replace("_", " ").lower()
        return f"{text}: the client does not trust the certificate" if "alert" in text else text
    if isinstance(error, TimeoutError):
        return "the handshake was not complete in time"
    return "the client went away" if isinstance(error, ConnectionError) else str(error)
