"""`shoal pool`: what a model waits for, in one line that a person reads."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cli.verbs.cluster.pool import copy_lines, wait_line

WAIT: dict[str, Any] = {
    "model": "big",
    "waited_s": 12.0,
    "why": "small is in use until its turn is over",
    "ready_in_s": None,
    "within_s": None,
    "ahead": 0,
}


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({}, []),
        ({"ready_in_s": 30.0}, ["ready in about 30 s"]),
        ({"within_s": 45.0}, ["at most 45 s, plus the time of running answers"]),
        ({"ahead": 3}, ["3 ahead in the queue"]),
        (
            {"ready_in_s": 0.0, "within_s": 90.0, "ahead": 1},
            ["ready in about 0 s", "at most 90 s", "1 ahead in the queue"],
        ),
    ],
)
def test_a_wait_says_what_is_known_of_it_and_nothing_else(
    known: dict[str, Any], said: list[str]
) -> None:
    line = wait_line(WAIT | known)
    assert line.startswith("big waits 12 s: small is in use until its turn is over")
    parts = line.split("; ")[1:]
    assert len(parts) == len(said), line
    assert all(part.startswith(one) for part, one in zip(parts, said, strict=True)), line


def test_a_copy_says_why_it_came_as_a_replica_and_why_it_leaves() -> None:
    copy = {"model": "a", "instance": "inst-1", "replica": "", "leaves": ""}
    assert copy_lines(copy) == []
    came = copy_lines(copy | {"replica": "its instance was overloaded for 30 s"})
    assert came == ["a (inst-1) is a replica: its instance was overloaded for 30 s"]
    left = copy_lines(copy | {"leaves": "makes way for b"})
    assert left == ["a (inst-1) is evicted: makes way for b"]
