"""What an instance tells of itself."""

from __future__ import annotations

import pytest

from tests.harness.node_server import instance


@pytest.mark.parametrize(
    ("why", "failures", "reason"),
    [
        ("no tensors (given up)", ("generation 1 rank 0: no tensors",), "no tensors (given up)"),
        ("", ("generation 1 rank 0: a", "generation 2 rank 1: b: c"), "b: c"),
        ("", (), "no reason given"),
    ],
)
def test_the_reason_is_the_cause_without_where_it_was_seen(
    why: str, failures: tuple[str, ...], reason: str
) -> None:
    assert instance("m", "failed", why=why, failures=failures).reason == reason
