"""Every loop of a node tells how long it stood still."""

from __future__ import annotations

import json
import re
import threading
import time

import httpx
import pytest

from tests.harness.nodes import MODEL, Node, eventually

LONGEST = re.compile(r'shoal_loop_stall_longest_seconds\{process="([^"]+)"\} ([0-9.e+-]+)')
STALL_S = 0.25


def longest(node: Node) -> dict[str, float]:
    """Return the longest stall of each process, from `/metrics`."""
    return {name: float(value) for name, value in LONGEST.findall(node.http.get("/metrics").text)}


def test_stalls_of_every_loop_are_told_and_no_body_causes_a_long_one(node: Node) -> None:
    loops = {"bus", "master", "worker", "gateway:0"}
    eventually(lambda: loops <= set(longest(node)), 20, "all loops tell of their stalls")
    pieces = b",".join([b'{"role":"user","content":"hi"}'] * 900_000)
    body = b'{"model":"shoal-tiny","messages":[' + pieces + b"]}"
    answer = node.http.post("/v1/chat/completions", content=body, timeout=60.0)
    assert answer.status_code == 400
    found = longest(node)
    print("longest stalls, s:", {name: round(value, 3) for name, value in found.items()})
    assert found["gateway:0"] < 3 * STALL_S, found


def _body(kind: str, size: int) -> bytes:
    message: dict[str, object] = {"role": "user", "content": "hi"}
    fields: dict[str, object] = {"model": MODEL, "max_tokens": 1}
    match kind:
        case "keys":
            message |= {f"k{number}": 0 for number in range(size)}
            fields["messages"] = [message]
        case "messages":
            fields["messages"] = [message] * size
        case "extras":
            fields |= {f"x_{number}": 0 for number in range(size)}
            fields["messages"] = [message]
        case _:
            fields["messages"] = [{"role": number % 10} for number in range(size)]
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("keys", 1_500_000),
        pytest.param("messages", 900_000, marks=pytest.mark.proof),
        pytest.param("extras", 1_500_000, marks=pytest.mark.proof),
        ("roles", 2_000_000),
    ],
)
def test_a_body_of_very_many_values_is_refused_and_stalls_nobody(
    node: Node, kind: str, size: int
) -> None:
    body = _body(kind, size)
    assert len(body) < 32 << 20
    gaps: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        with httpx.Client(base_url=node.url, timeout=30.0) as client:
            while not ended.is_set():
                at = time.monotonic()
                client.get("/livez")
                gaps.append(time.monotonic() - at)
                time.sleep(0.01)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    answer = node.http.post("/v1/chat/completions", content=body, timeout=60.0)
    ended.set()
    watcher.join(30.0)
    print(f"{kind}: slowest /livez meanwhile {max(gaps):.3f} s")
    assert answer.status_code == 400, answer.text[:300]
    assert "values" in answer.text or "keys" in answer.text, answer.text[:300]
    assert max(gaps) < 3 * 0.25, gaps
