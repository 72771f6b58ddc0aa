"""A collector has so long to answer, however it spends it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.tracing.otlp.collector import HttpCollector
from tests.harness.certificates import TlsPairOnDisk
from tests.harness.http_servers import running


@dataclass
class Collector:
    """A collector and what it received. It answers no request while `answers` is clear."""

    port: int = 0
    scheme: str = "http"
    received: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    answers: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/in"


@contextmanager
def collecting(tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """Run a collector for as long as the block lasts; over HTTPS with `tls`."""
    made = Collector(scheme="https" if tls else "http")
    made.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            if not made.answers.is_set():
                made.answers.wait(60)
                self.close_connection = True
                return
            made.received.append((self.headers.get("authorization", ""), content))
            self.send_response(200)
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


@contextmanager
def trickling() -> Iterator[int]:
    """A server that sends a byte of a header now and then, for ever; its port."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            line, _ = server.accept()
            with line:
                line.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
                while not ended.wait(0.05):
                    try:
                        line.sendall(b"a")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            ended.set()
            thread.join(10)


def test_an_answer_that_trickles_is_cut_off() -> None:
    with trickling() as port, pytest.raises(TimeoutError, match="no answer in time"):
        HttpCollector(f"http://127.0.0.1:{port}", {}, 0.5).post(b"{}\n")


def test_an_answer_in_time_is_told_with_what_it_asks_for() -> None:
    with collecting() as collector:
        answer = HttpCollector(collector.url, {"authorization": "Bearer s3"}, 5.0).post(
            b'{"a": 1}\n'
        )
        assert (answer.status, answer.retry_after_s) == (200, 0.0)
        assert collector.received == [("Bearer s3", b'{"a": 1}\n')]


def test_an_address_where_none_listens_is_an_error_of_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError):
        HttpCollector(f"http://127.0.0.1:{port}", {}, 5.0).post(b"")


def test_over_https_the_collector_is_one_that_the_system_trusts_and_has_a_deadline_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = TlsPairOnDisk(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    with collecting(tls) as collector:
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            HttpCollector(collector.url, {}, 5.0).post(b'{"a": 1}\n')
        monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
        assert HttpCollector(collector.url, {}, 5.0).post(b'{"a": 1}\n').status == 200
        assert collector.received == [("", b'{"a": 1}\n')]
        collector.answers.clear()
        with pytest.raises(OSError):
            HttpCollector(collector.url, {}, 0.5).post(b'{"a": 2}\n')
