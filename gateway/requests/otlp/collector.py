"""Talks to a collector of traces over HTTP: one request, one answer, with a deadline.

Blocks, so it belongs in a thread. Neither proxies nor redirects are followed: the address is the
operator's.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import certifi

PATH = "/v1/traces"
MOST_ANSWER_BYTES = 64 << 10
PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the same may be sent again."""


@dataclass(frozen=True, slots=True)
class CollectorAnswer:
    """What a collector said; `retry_after_s` is 0 where it named no time."""

    status: int
    body: bytes
    retry_after_s: float


class TraceCollector:
    """The collector at `endpoint`, where `PATH` is added to an address that lacks it. `headers` go
    with each request."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], timeout_s: float) -> None:
        url = urlsplit(endpoint)
        path = url.path.rstrip("/")
        self.address = f"{url.scheme}://{url.netloc}"
        self._host, self._port = url.hostname or "", url.port
        self._path = path if path.endswith(PATH) else path + PATH
        self._headers = {
            **headers,
            "content-type": "application/x-protobuf",
            "user-agent": "shoal",
            "connection": "close",
        }
        self._timeout_s = timeout_s
        self._trusted: ssl.SSLContext | None = None
        if url.scheme == "https":
            self._trusted = ssl.create_default_context()
            self._trusted.load_verify_locations(certifi.where())

    def post(self, body: bytes) -> CollectorAnswer:
        """Send a body; return what came back. Raises OSError where nothing did."""
        connection = self._connection()
        try:
            connection.request("POST", self._path, body, self._headers)
            answer = connection.getresponse()
            text = answer.read(MOST_ANSWER_BYTES)
            after = answer.headers.get("retry-after", "")
            return CollectorAnswer(answer.status, text, float(after) if after.isdecimal() else 0.0)
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP: {type(error).__name__}") from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._trusted is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout_s, context=self._trusted
        )
