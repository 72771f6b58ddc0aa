"""Talks to a trace collector over HTTP: sends one request and reads the answer, with a
deadline.

Blocks, so it belongs in a thread. Neither proxies nor redirects are followed: the address is the
operator's.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import certifi

MOST_ANSWER_BYTES = 64 << 10
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may be sent again."""


@dataclass(frozen=True, slots=True)
class CollectorAnswer:
    """The answer of a collector; `retry_after_s` is 0 if it has no Retry-After."""

    status: int
    body: bytes
    retry_after_s: float


class HttpCollector:
    """The collector at `url`. `headers` are sent with each request. `timeout_s` limits the time to
    connect, and then again the time to answer."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        parts = urlsplit(url)
        self.address = f"{parts.scheme}://{parts.netloc}"
        self._host, self._port = parts.hostname or "", parts.port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {**headers, "user-agent": "shoal", "connection": "close"}
        self._timeout_s = timeout_s
        self._trusted: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._trusted = ssl.create_default_context()
            self._trusted.load_verify_locations(certifi.where())

    def post(self, body: bytes) -> CollectorAnswer:
        """Send a body and return the answer. Raises OSError if no answer arrives."""
        connection = self._connection()
        is_late = threading.Event()
        late = threading.Timer(self._timeout_s, _cut, (connection, is_late))
        late.daemon = True
        try:
            connection.connect()
            late.start()
            connection.request("POST", self._target, body, self._headers)
            answer = connection.getresponse()
            text = answer.read(MOST_ANSWER_BYTES)
            if is_late.is_set():
                raise TimeoutError
            after = answer.headers.get("retry-after", "")
            return CollectorAnswer(answer.status, text, float(after) if after.isdecimal() else 0.0)
        except (OSError, http.client.HTTPException) as error:
            if is_late.is_set():
                raise TimeoutError("no answer in time") from None
            if isinstance(error, OSError):
                raise
            raise OSError(f"the HTTP request failed: {type(error).__name__}") from None
        finally:
            late.cancel()
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._trusted is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout_s, context=self._trusted
        )


def _cut(connection: http.client.HTTPConnection, is_late: threading.Event) -> None:
    """Shut a connection down from another thread, so that its reader stops waiting."""
    is_late.set()
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            # TLS's own shutdown would free the connection under the thread that reads it.
            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
