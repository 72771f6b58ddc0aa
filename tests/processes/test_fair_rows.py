"""One client may have an idle node, and gives way to others."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.harness.nodes import MODEL, Node, Stream, eventually
from tests.harness.shared_nodes import KEYS

ROWS = 32
SOON_S = 4.0
"""Two seconds, and what a machine of two cores needs for a step of 32 rows and a prompt."""


@pytest.fixture(scope="module")
def node(shared_keyed: Node) -> Iterator[Node]:
    """The node with two keys; nothing is open on it when it is given back."""
    eventually(shared_keyed.ready, 30, "ready")
    yield shared_keyed
    _idle(shared_keyed)


def _idle(node: Node) -> None:
    eventually(lambda: not node.http.get("/queue").json()["requests"], 90, "nothing is open")


def _crowd(node: Node, clients: list[str], tokens: int) -> list[socket.socket]:
    """Ask once for each of the clients, on connections that are never read from."""
    opened: list[socket.socket] = []
    for client in clients:
        body = json.dumps(
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": f"Tell me about {len(opened)} boats."}],
                "max_tokens": tokens,
                "ignore_eos": True,
                "stream": True,
                "x_client_id": client,
            }
        ).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {KEYS[0]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", node.base_port))
        connection.sendall(head.encode() + body)
        opened.append(connection)
    return opened


def _first_token_s(node: Node, key: str, client: str) -> float:
    """Return how long the first token of a short answer takes; fails where there is none."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count from 1 to 5."}],
        "max_tokens": 8,
        "stream": True,
        "x_client_id": client,
    }
    began = time.monotonic()
    with httpx.stream(
        "POST",
        node.url + "/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {key}"},
        timeout=60.0,
    ) as answer:
        assert answer.status_code == 200, (answer.status_code, answer.read()[:300])
        for line in answer.iter_lines():
            if '"content":"' in line and '"content":""' not in line:
                return time.monotonic() - began
    raise AssertionError("the answer has no text")


def _is_full(node: Node) -> bool:
    instances = node.http.get("/queue").json()["instances"]
    return any(one["running"] >= ROWS and one["waiting"] > 0 for one in instances)


@pytest.mark.parametrize(
    "who", ["another client", pytest.param("another key", marks=pytest.mark.proof)]
)
def test_sixty_streams_that_nobody_reads_leave_rows_to_others(node: Node, who: str) -> None:
    _idle(node)
    by_key = who == "another key"
    clients = [f"hog-{number}" if by_key else "hog" for number in range(60)]
    crowd = _crowd(node, clients, 3500)
    try:
        eventually(lambda: _is_full(node), 30, "one client has all rows and waits for more")
        key = KEYS[1] if by_key else KEYS[0]
        took = [_first_token_s(node, key, "other") for _ in range(3)]
    finally:
        for connection in crowd:
            with closing(connection):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    print(f"first token of {who} after " + ", ".join(f"{one:.1f} s" for one in took))
    assert max(took) < SOON_S, took


@pytest.mark.proof
def test_rows_that_gave_way_go_on_with_the_same_text(node: Node) -> None:
    _idle(node)
    fields = {"ignore_eos": True, "x_client_id": "hog"}
    alone = node.stream("Tell me about the sea.", max_tokens=600, **fields).wait(60.0)
    hog: list[Stream] = [
        node.stream("Tell me about the sea.", max_tokens=600, **fields).flowing(1)
        for _ in range(ROWS)
    ]
    time.sleep(1.2)
    others = [
        node.stream("Count from 1 to 5.", max_tokens=12, x_client_id="other") for _ in range(4)
    ]
    for stream in (*others, *hog):
        stream.wait(180.0)
    waited = [stream.at[0] - stream.started_at for stream in others]
    print("the others' first tokens after " + ", ".join(f"{one:.1f} s" for one in waited))
    assert max(waited) < SOON_S, waited
    assert [stream.finish for stream in hog] == ["length"] * ROWS
    assert all(stream.text == alone.text for stream in hog), "a row that gave way says otherwise"
