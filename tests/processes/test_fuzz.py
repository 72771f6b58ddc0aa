"""Very large bodies, and thousands of requests that no client means, while streams run: no loop
stands still, and nobody else notices.

`make prove-fuzz` runs it at full size with a drawn seed; `SHOAL_TEST_FUZZ=<seed>` gives one again.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.harness.hub import HubServer
from tests.harness.nodes import MODEL, Node, Stream, eventually, running_node
from tests.harness.openapi_requests import GeneratedRequest, OpenApiRequests
from tests.harness.seeds import seed_for

FULL = os.environ.get("SHOAL_PROVE") == "1"
GENERATED = 20_000 if FULL else 240
MALFORMED = 5_000 if FULL else 36
LARGEST_BYTES = 32 << 20 if FULL else 4 << 20
STREAMS = 8 if FULL else 2
STALL_S = 0.25
LONGEST = re.compile(r'shoal_loop_stall_longest_seconds\{process="([^"]+)"\} ([0-9.e+-]+)')
KNOWN = {
    "model": (MODEL, MODEL, "nobody/knows"),
    "name": (MODEL, "bus", "gateway"),
    "max_tokens": (1, 2, 3),
    "max_completion_tokens": (1, 2),
    "num_predict": (1, 2),
    "n": (1, 2),
    "keep_alive": ("5m", 300),
    "x_stay_warm": (60,),
    "dry_run": (True,),
    "seconds": (0.1,),
    "drain_s": ("nan", "5", "-1"),
}
SKIPPED = re.compile(
    r"/apikeys|/nodes/|/rdma|/instance/\{|/place_instance|/v1/diagnostics|/collective"
    r"|/metrics/stream|/memory/live|/instance$|/admin/"
)
"""What changes the node on purpose (a key closes it to who has none), takes seconds on purpose, or
has no end."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Start a node of its own: what it is sent is not for others to share. Its hub has no models,
    and says so at once."""
    hub = HubServer({})
    try:
        with running_node(HF_ENDPOINT=hub.url, HF_TOKEN="") as made:
            yield made
    finally:
        hub.close()


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
        pytest.param("roles", 2_000_000, marks=pytest.mark.proof),
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


def _largest(node: Node, seen: Counter[str]) -> None:
    for process in node.all_processes():
        try:
            name = " ".join(process.name().split()[:2])
            seen[name] = max(seen[name], process.memory_info().rss)
        except psutil.Error:
            continue


def _kept_running(node: Node, streams: list[Stream], ended: list[Stream]) -> None:
    for stream in [one for one in streams if one.ended_at is not None]:
        streams.remove(stream)
        ended.append(stream)
    while len(streams) < STREAMS:
        streams.append(node.stream("Count from 1 to 200.", max_tokens=300, ignore_eos=True))


def _sent(client: httpx.Client, asked: GeneratedRequest) -> httpx.Response | None:
    headers = {"Content-Type": "application/json"}
    try:
        return client.request(
            asked.method, asked.path, params=asked.query, content=asked.body, headers=headers
        )
    except (httpx.InvalidURL, httpx.LocalProtocolError):
        return None


def test_requests_that_nobody_means_disturb_no_stream(node: Node) -> None:
    seed = seed_for("FUZZ", 7)
    document = node.http.get("/openapi.json").json()
    document["paths"] = {p: o for p, o in document["paths"].items() if not SKIPPED.search(p)}
    requests = OpenApiRequests(document, random.Random(seed), KNOWN)
    streams: list[Stream] = []
    ended: list[Stream] = []
    statuses: Counter[int] = Counter()
    largest: Counter[str] = Counter()
    wrong: list[str] = []
    with httpx.Client(base_url=node.url, timeout=60.0) as client:
        for number in range(GENERATED + MALFORMED):
            if number % 20 == 0:
                _kept_running(node, streams, ended)
                _largest(node, largest)
            if number < GENERATED:
                asked = requests.one()
            else:
                path = ("/v1/chat/completions", "/api/chat", "/v1/completions")[number % 3]
                body = requests.malformed(LARGEST_BYTES)
                known = frozenset({400, 404, 413, 429, 503})
                asked = GeneratedRequest("POST", path, {}, body, known)
            answer = _sent(client, asked)
            if answer is None:
                continue
            statuses[answer.status_code] += 1
            if answer.status_code >= 500 and answer.status_code not in asked.documented:
                wrong.append(f"{answer.status_code} {asked} {answer.text[:200]}"[:600])
            if answer.status_code == 500:
                wrong.append(f"500 {asked} {answer.text[:200]}"[:600])
    found = longest(node)
    for stream in streams:
        stream.wait(120.0)
    broken = [one for one in (*ended, *streams) if one.error or one.broken]
    print("statuses", dict(statuses), "streams", len(ended) + len(streams))
    print("longest stalls, s", found)
    print("largest, MiB", {name: size >> 20 for name, size in largest.items()})
    assert not wrong, "\n".join(wrong[:10])
    assert not broken, [(one.error, one.broken) for one in broken][:5]
    assert found["gateway:0"] < 3 * STALL_S
    eventually(node.ready, 10, "the node serves")
