"""What a real node has measured in the last hour stays, though its gateway is killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.nodes import Node, eventually, kill, running_node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node(SHOAL_PRELOAD="", SHOAL_HTTP_PROCESSES="2") as made:
        yield made


def points(node: Node) -> list[dict[str, Any]]:
    """Return the points, none while the gateway does not answer."""
    try:
        found = httpx.get(f"{node.url}/metrics/history", timeout=10.0)
    except httpx.HTTPError:
        return []
    return found.json()["points"] if found.status_code == 200 else []


def test_points_go_on_behind_those_of_a_gateway_that_was_killed(node: Node) -> None:
    before = eventually(lambda: found if len(found := points(node)) > 1 else None, 60, "two points")
    own = node.node_id()
    assert all(one["nodes"][own]["memory"] > 0 for one in before)
    times = [one["at_s"] for one in before]
    assert times == sorted(set(times)), "one process notes them"
    kill(node.pid("gateway"))
    after = eventually(
        lambda: found if len(found := points(node)) > len(before) else None, 90, "points go on"
    )
    assert after[: len(before)] == before
