"""Every loop of a node tells how long it stood still (A of the inspection, limits as a table)."""

from __future__ import annotations

import re

from tests.harness.nodes import Node, eventually

LONGEST = re.compile(r'shoal_loop_stall_longest_seconds\{process="([^"]+)"\} ([0-9.e+-]+)')
STALL_S = 0.25


def longest(node: Node) -> dict[str, float]:
    """Return the longest stall of each process, from `/metrics`."""
    return {name: float(value) for name, value in LONGEST.findall(node.http.get("/metrics").text)}


def test_a_stalls_of_every_loop_are_told_and_no_body_causes_a_long_one(node: Node) -> None:
    loops = {"bus", "master", "worker", "gateway:0"}
    eventually(lambda: loops <= set(longest(node)), 20, "all loops tell of their stalls")
    pieces = b",".join([b'{"role":"user","content":"hi"}'] * 900_000)
    body = b'{"model":"shoal-tiny","messages":[' + pieces + b"]}"
    answer = node.http.post("/v1/chat/completions", content=body, timeout=60.0)
    assert answer.status_code == 400
    found = longest(node)
    print("longest stalls, s:", {name: round(value, 3) for name, value in found.items()})
    assert found["gateway:0"] < 3 * STALL_S, found
