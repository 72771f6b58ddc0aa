"""Talks to a program of `engines.toml` over HTTP on this machine: health, and streams of answers.

Each request has a connection of its own. Every wait has a deadline. Closing a stream closes its
connection, by which the program learns that the answer is not read any more.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bus.translation import DONE, data_of, error_message

ASK_S = 5.0
"""Deadline of a request to the program's health path, in seconds."""
MOST_LINE_BYTES, MOST_WORDS_BYTES = 4 << 20, 64 << 10
STREAM_TYPES = ("text/event-stream",)


class EngineTrouble(Exception):
    """The program is not ready, or its answer breaks the rules of its API."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a stream, with its end."""

    data: bytes


@dataclass(frozen=True, slots=True)
class LostStream:
    """A stream that failed, and why. `status`: the HTTP status of a refusal; 0: the connection
    broke, or the answer is not a stream of events."""

    why: str
    status: int = 0


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The program has closed the stream."""


News = Line | LostStream | StreamEnd


class EngineClient:
    """An HTTP client of the program at a port of this machine. May be used in any thread."""

    def __init__(self, name: str, port: int, key: str, *, stall_s: float) -> None:
        self.name = name
        self.stall_s = stall_s
        self.headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Authorization": f"Bearer {key}",
            "X-Api-Key": key,
            "Anthropic-Version": "2023-06-01",
        }
        self._port = port

    def why_not_ready(self, path: str) -> str:
        """Return why the program is not ready, by its health path; "" if it is ready."""
        connection = self.connection(ASK_S)
        try:
            with contextlib.closing(connection):
                connection.request("GET", path, headers=self.headers)
                answer = connection.getresponse()
                answer.read(MOST_WORDS_BYTES)
                return "" if answer.status == 200 else f"GET {path} answered {answer.status}"
        except (OSError, http.client.HTTPException) as error:
            return f"GET {path}: {_why(error)}"

    def stream(
        self, path: str, body: Mapping[str, Any], post: Callable[[News], None]
    ) -> EngineStream:
        """Start an answer. `post` is called in another thread."""
        return EngineStream(self, path, json.dumps(body, separators=(",", ":")).encode(), post)

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a new connection, which is not open yet."""
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout_s)


class EngineStream:
    """One answer, read in a thread of its own, which ends with the answer."""

    def __init__(
        self, client: EngineClient, path: str, body: bytes, post: Callable[[News], None]
    ) -> None:
        self._client = client
        self._path = path
        self._body = body
        self._post = post
        self._is_closed = False
        self._socket: socket.socket | None = None
        threading.Thread(target=self._run, name="engine-answer", daemon=True).start()

    def close(self) -> None:
        """Stop the answer. Called in the main thread; does not wait."""
        self._is_closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        client = self._client
        connection = client.connection(client.stall_s)
        try:
            with contextlib.closing(connection):
                connection.connect()
                self._socket = connection.sock
                self._tell(self._read(connection))
        except TimeoutError:
            self._tell(LostStream(f"{client.name} sent nothing for {client.stall_s:g} s"))
        except (OSError, http.client.HTTPException, ValueError) as error:
            # `close` shuts down the socket alone, so http.client's own objects stay as they are
            self._tell(LostStream(f"the connection to {client.name} broke: {_why(error)}"))

    def _tell(self, news: News) -> None:
        if not self._is_closed:
            self._post(news)

    def _read(self, connection: http.client.HTTPConnection) -> News:
        """Send the request, post each line of its answer to the main thread, and return how the
        stream ended."""
        name = self._client.name
        if self._is_closed:
            return StreamEnd()
        connection.request("POST", self._path, self._body, self._client.headers)
        answer = connection.getresponse()
        if answer.status != 200:
            words = body_words(answer.read(MOST_WORDS_BYTES))
            why = f"{name} answered {self._path} with {answer.status}{words and f': {words}'}"
            return LostStream(why, answer.status)
        kind = (answer.getheader("Content-Type") or "nothing").partition(";")[0].strip().lower()
        if kind not in STREAM_TYPES:
            why = f"{name} answered {self._path} with {kind[:80]} instead of a stream of events"
            return LostStream(why)
        while line := answer.readline(MOST_LINE_BYTES):
            if not line.endswith(b"\n") and len(line) >= MOST_LINE_BYTES:
                return LostStream(f"{name} sent a line of more than {MOST_LINE_BYTES >> 20} MiB")
            if line.strip():
                self._tell(Line(line))
        return StreamEnd()


def is_end(line: bytes) -> bool:
    """Return whether a line ends a stream of OpenAI's API. Streams of Anthropic's end with their
    connection."""
    return data_of(line.rstrip()) == DONE


def body_words(data: bytes) -> str:
    """Return the message in the body of an error, else the beginning of the body; "" for HTML."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    text = error_message(value)
    if text is None:
        text = data.decode(errors="replace")
        text = "" if text.lstrip().startswith("<") else text
    return "".join(c if c.isprintable() else " " for c in text).strip()[:300]


def _why(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "no program listens at the port"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return type(error).__name__
