"""The edge of HTTP: what a stranger sends hurts nobody."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import httpx
import pytest

from bus.process.ports import addresses_of
from tests.harness.nodes import MODEL, Node, eventually

HUGE = "9" * 24
HEADERS_S = 10.0


def raw(node: Node, data: bytes, seconds: float = 10.0) -> bytes:
    """Send bytes on a connection of their own; return what came back until it was closed."""
    with socket.create_connection(("127.0.0.1", node.base_port), timeout=seconds) as connection:
        connection.sendall(data)
        said = b""
        while True:
            try:
                piece = connection.recv(65536)
            except (TimeoutError, ConnectionResetError):
                return said
            if not piece:
                return said
            said += piece


def status_of(answer: bytes) -> int:
    """Return the status of a raw answer, 0 for none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


@pytest.mark.parametrize(
    "query", [f"context_tokens={HUGE}", f"min_nodes={HUGE}", "context_tokens=%C2%B2", "min_nodes=0"]
)
@pytest.mark.parametrize("path", ["placement", "previews"])
def test_a_number_beyond_all_bounds_is_refused_by_name(node: Node, path: str, query: str) -> None:
    answer = node.http.get(f"/instance/{path}?model={MODEL}&{query}", timeout=20.0)
    assert answer.status_code == 400, (answer.status_code, answer.text[:200])
    assert answer.json()["error"]["param"] == query.partition("=")[0]


@pytest.mark.proof
def test_commands_keep_their_deadline_whatever_was_asked_before(node: Node) -> None:
    for name in ("context_tokens", "min_nodes"):
        node.http.get(f"/instance/placement?model={MODEL}&{name}={HUGE}", timeout=20.0)
    time.sleep(1.5)
    answer: list[httpx.Response] = []

    def delete() -> None:
        answer.append(node.http.delete("/instance/nope", timeout=40.0))

    master = node.pid("master")
    os.kill(master, signal.SIGSTOP)
    try:
        asked = threading.Thread(target=delete, daemon=True)
        asked.start()
        asked.join(30.0)
        assert answer, "a command without a holder has no answer after 30 s"
        assert answer[0].status_code in (503, 504), answer[0].text
    finally:
        os.kill(master, signal.SIGCONT)
        eventually(node.ready, 30, "the node serves again")


def test_another_sites_page_may_not_ask(node: Node) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    answer = node.http.get(f"/instance/placement?model={MODEL}", headers=headers)
    assert answer.status_code == 403, answer.text


@pytest.mark.parametrize("header", ["Host: [::1", "Host: ]", "Host: [zz]:1", "Host: a b"])
def test_a_host_that_is_none_is_refused(node: Node, header: str) -> None:
    said = raw(node, f"GET /health HTTP/1.1\r\n{header}\r\nConnection: close\r\n\r\n".encode())
    assert 400 <= status_of(said) < 500, said


def test_an_origin_that_is_none_is_refused(node: Node) -> None:
    answer = node.http.get("/v1/models", headers={"Origin": "http://[::1"})
    assert 400 <= answer.status_code < 500, answer.text


def test_the_other_loopback_answers_too(node: Node) -> None:
    if "::1" not in addresses_of("localhost"):
        pytest.skip("this machine has no IPv6")
    url = f"http://[::1]:{node.base_port}/api/chat"
    messages = [{"role": "user", "content": "Hello"}]
    options = {"num_predict": 2}
    asked = {"model": MODEL, "messages": messages, "stream": False, "options": options}
    answer = httpx.post(url, json=asked, headers={"Origin": "app://obsidian.md"}, timeout=60)
    assert answer.status_code == 200 and answer.json()["done"], answer.text


def test_a_websocket_is_refused(node: Node) -> None:
    upgrade = (
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    said = raw(node, upgrade, 3.0)
    assert 400 <= status_of(said) < 500, said


def test_a_request_id_of_odd_digits_is_not_found(node: Node) -> None:
    answer = node.http.delete(f"/v1/cancel/req-{node.node_id()}-h%C2%B2-x-1")
    assert answer.status_code == 404, (answer.status_code, answer.text)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e400", "x"])
def test_a_drain_of_no_number_of_seconds_is_refused(node: Node, seconds: str) -> None:
    answer = node.http.delete(f"/instance/nope?drain_s={seconds}")
    assert answer.status_code == 400, (answer.status_code, answer.text)
    assert "drain_s" in answer.text


def test_a_length_of_thousands_of_digits_is_answered(node: Node) -> None:
    digits = b"1" * 5_000
    said = raw(
        node,
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        + digits
        + b"\r\n\r\n",
    )
    assert 400 <= status_of(said) < 500, said


def test_an_absolute_target_is_served(node: Node) -> None:
    host = f"127.0.0.1:{node.base_port}"
    target = f"GET http://{host}/health?x=1 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    assert status_of(raw(node, target.encode())) == 200


@pytest.mark.parametrize("required", [5, "a", {"a": 1}, [1], [None]])
def test_a_schema_with_improper_required_names_the_field(node: Node, required: object) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": required}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = node.chat("hello", response_format=form, max_tokens=4)
    assert answer.status_code == 400, (answer.status_code, answer.text)
    message = answer.json()["error"]["message"]
    assert "required" in message and "TypeError" not in message, message


@pytest.mark.parametrize(
    ("field", "value"),
    [("repetition_penalty", 1e-300), ("repetition_penalty", 5e-324), ("temperature", 1e-320)],
)
def test_numbers_that_leave_float32_give_no_garbage(node: Node, field: str, value: float) -> None:
    want = node.chat("Count from 1 to 5.", max_tokens=12)
    answer = node.chat("Count from 1 to 5.", max_tokens=12, **{field: value})
    if answer.status_code == 400:
        assert answer.json()["error"]["param"] == field
    else:
        assert answer.json()["choices"][0]["message"] == want.json()["choices"][0]["message"]


@pytest.mark.proof
def test_connections_without_complete_headers_are_closed(node: Node) -> None:
    opened = [
        socket.create_connection(("127.0.0.1", node.base_port), timeout=5.0) for _ in range(40)
    ]
    try:
        for connection in opened[20:]:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localh")
        began = time.monotonic()
        for connection in opened:
            connection.settimeout(max(0.1, 3 * HEADERS_S - (time.monotonic() - began)))
            try:
                while connection.recv(4096):
                    pass
            except TimeoutError:
                pytest.fail(f"a connection without headers is open after {3 * HEADERS_S:g} s")
            except ConnectionResetError:
                continue
        print(f"closed after {time.monotonic() - began:.1f} s")
    finally:
        for connection in opened:
            connection.close()
