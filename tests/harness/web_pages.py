"""A web server of pages that are good, hostile, slow or without end, by their paths."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = """<!doctype html><html><head><title> A page
 of fish </title></head><body><nav><a href="/menu">Menu</a> <a href="#top">Top</a></nav>
<article><h1>Shoals</h1><p>A shoal is a group of fish that stay together for company, and it moves
as one where it is a school.</p><p>Sardines make <a href="far#part">large</a> ones, which whales
<a href="https://whales.example/x">eat</a>; <a href="javascript:alert(1)">no</a>.</p></article>
<script>var secret = 1</script><footer>Imprint</footer></body></html>"""


class _Answers(BaseHTTPRequestHandler):
    """One connection."""

    server: Pages
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        self.server.heard.append(
            {"path": self.path, **{k.lower(): v for k, v in self.headers.items()}}
        )
        query = {name: values[0] for name, values in parse_qs(asked.query).items()}
        try:
            getattr(self, f"_{asked.path.strip('/')}", self._missing)(query)
        except (ConnectionError, ssl.SSLError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _say(self, body: bytes, kind: str = "text/html", status: int = 200, **more: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _page(self, query: dict[str, str]) -> None:
        self._say(PAGE.encode(), "text/html; charset=utf-8")

    def _text(self, query: dict[str, str]) -> None:
        self._say("Fußnote".encode("latin-1"), "text/plain; charset=latin-1")

    def _kind(self, query: dict[str, str]) -> None:
        self._say(b"\x89PNG", query["is"])

    def _missing(self, query: dict[str, str]) -> None:
        self._say(b"<title>Nothing</title><p>No such page.", status=404)

    def _to(self, query: dict[str, str]) -> None:
        self._say(b"", status=int(query.get("status", 302)), Location=query["url"])

    def _round(self, query: dict[str, str]) -> None:
        self._say(b"", status=302, Location=f"/round?{int(query.get('n', 0)) + 1}")

    def _bomb(self, query: dict[str, str]) -> None:
        packed = gzip.compress(b"\0" * (32 << 20), 9)
        self._say(packed, "text/plain", **{"Content-Encoding": "gzip"})

    def _packed(self, query: dict[str, str]) -> None:
        self._say(gzip.compress(PAGE.encode()), **{"Content-Encoding": "gzip"})

    def _gigabyte(self, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(1 << 30))
        self.end_headers()
        for _ in range(1 << 10):
            self.wfile.write(b"x" * (1 << 20))
            self.server.sent_bytes += 1 << 20

    def _drip(self, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(1 << 20))
        self.end_headers()
        while not self.server.over.wait(0.05):
            self.wfile.write(b"x")

    def _silent(self, query: dict[str, str]) -> None:
        self.server.over.wait(30)

    def _headers(self, query: dict[str, str]) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not self.server.over.is_set():
            self.wfile.write(b"x-more: " + b"y" * 1000 + b"\r\n")

    def _hints(self, query: dict[str, str]) -> None:
        while not self.server.over.is_set():
            self.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: " + b"y" * 10_000 + b"\r\n\r\n")

    def _cut(self, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"only this")
        self.close_connection = True

    def _nonsense(self, query: dict[str, str]) -> None:
        self.wfile.write(b"220 mail.example ESMTP\r\n")
        self.close_connection = True

    def _search(self, query: dict[str, str]) -> None:
        if self.server.search_status != 200:
            self._say(b"<html>no", status=self.server.search_status)
            return
        rows = [
            {
                "url": f"https://{n}.example/",
                "title": f"{n} {query['q']}",
                "content": "words " * 999,
            }
            for n in range(20)
        ]
        said = {"query": query["q"], "results": [{"title": "without a url"}, *rows]}
        self._say(json.dumps(said).encode(), "application/json")


class Pages(ThreadingHTTPServer):
    """The server, and what it heard: paths and headers in lower case."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.heard: list[dict[str, str]] = []
        self.over = threading.Event()
        self.sent_bytes = 0
        self.search_status = 200
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def port(self) -> int:
        return self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextmanager
def pages(certificate: Path | None = None) -> Iterator[Pages]:
    """Serve on a port of this machine until the end."""
    made = Pages(certificate)
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.over.set()
        made.shutdown()
        made.server_close()
        thread.join(5)
