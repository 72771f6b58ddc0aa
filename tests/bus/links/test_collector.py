"""A collector has so long to answer, however it spends it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bus.links.collector import HttpCollector
from tests.harness.certificates import TlsPairOnDisk
from tests.harness.line_collector import collecting_lines


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
    with trickling() as port, pytest.raises(TimeoutError, match="did not answer in time"):
        HttpCollector(f"http://127.0.0.1:{port}", {}, 0.5).post(b"{}\n")


def test_an_answer_in_time_is_told_with_what_it_asks_for() -> None:
    with collecting_lines() as collector:
        answer = HttpCollector(collector.url, {"authorization": "Bearer s3"}, 5.0).post(
            b'{"a": 1}\n'
        )
        assert (answer.status, answer.retry_after_s) == (200, 0.0)
        assert collector.lines == [{"a": 1}]
        assert collector.heads[0]["authorization"] == "Bearer s3"


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
    with collecting_lines(tls) as collector:
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            HttpCollector(collector.url, {}, 5.0).post(b'{"a": 1}\n')
        monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
        assert HttpCollector(collector.url, {}, 5.0).post(b'{"a": 1}\n').status == 200
        assert collector.lines == [{"a": 1}]
        collector.answers.clear()
        with pytest.raises(OSError):
            HttpCollector(collector.url, {}, 0.5).post(b'{"a": 2}\n')
