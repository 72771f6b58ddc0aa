"""A collector of log lines for tests: takes newline-delimited JSON over HTTP, refuses, or hangs."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.http_servers import running

Refuses = Callable[[list[dict[str, Any]]], int]


@dataclass
class LineCollector:
    """What has come. `refuses` tells the status by which the lines of a request are refused, 0 to
    take them; no request is answered while `answers` is clear."""

    port: int = 0
    scheme: str = "http"
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    heads: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    asked: int = 0
    refuses: Refuses = lambda _: 0
    answers: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/in?stream=shoal"

    @property
    def messages(self) -> list[str]:
        return [one["message"] for one in self.lines]


@contextmanager
def collecting_lines(tls: ssl.SSLContext | None = None) -> Iterator[LineCollector]:
    """A collector, for as long as the block lasts; over HTTPS with `tls`."""
    made = LineCollector(scheme="https" if tls else "http")
    made.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            made.asked += 1
            if not made.answers.is_set():
                made.answers.wait(60)
                self.close_connection = True
                return  # who asked has long given up
            head = {name.lower(): value for name, value in self.headers.items()}
            made.heads.append(head | {"path": self.path})
            lines = [json.loads(line) for line in content.splitlines()]
            status = made.refuses(lines) or 200
            if status == 200:
                made.lines += lines
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with running(server) as made.port:
        try:
            yield made
        finally:
            made.answers.set()
