"""Streams of lines on the wire: one line in each chunk, for clients take a chunk as one value."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, gateway_testbed


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as made:
        made.runner()
        yield made


def chunks(url: str, path: str, body: dict[str, Any]) -> list[bytes]:
    """The chunks of an answer, as they were written."""
    sent = json.dumps(body).encode()
    place = urlsplit(url)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(sent)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((place.hostname, place.port), timeout=10) as link:
        link.sendall(head.encode() + sent)
        with link.makefile("rb") as answer:
            status = answer.readline()
            assert b" 200 " in status, status
            while answer.readline().strip():
                pass
            found: list[bytes] = []
            while size := int(answer.readline(), 16):
                found.append(answer.read(size))
                answer.readline()
    return found


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_each_line_of_a_stream_is_a_chunk_of_its_own(testbed: GatewayTestbed, path: str) -> None:
    orders = "tokens=30"
    chat = {"messages": [{"role": "user", "content": orders}]}
    asked = chat if path == "/api/chat" else {"prompt": orders}
    found = chunks(testbed.url, path, {"model": MODEL, **asked})
    lines = [json.loads(one) for one in found]
    assert all(one.count(b"\n") == 1 and one.endswith(b"\n") for one in found)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["eval_count"] == 30
