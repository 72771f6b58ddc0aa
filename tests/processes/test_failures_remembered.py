"""A model whose runner dies again and again, and holders that die between: who holds the term next
goes on counting where the last one was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.clusters import Cluster, running_cluster, view_of
from tests.harness.nodes import Node, eventually, kill

pytestmark = [
    pytest.mark.proof,
    pytest.mark.nodes,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
PATIENCE_S = 120.0
MODEL = "shoal-tiny"


@pytest.fixture
def pair() -> Iterator[Cluster]:
    with running_cluster(2) as made:
        yield made


def copy_on(node: Node) -> dict[str, Any] | None:
    """The only copy, as this node knows it."""
    view = view_of(node)
    found = [] if view is None else list(view["state"]["instances"].values())
    return found[0] if found else None


def row_on(node: Node) -> dict[str, Any]:
    """What this node knows of the model's failures."""
    view = view_of(node)
    return {} if view is None else view["state"]["setbacks"].get(MODEL, {})


def dies(node: Node, count: int) -> None:
    """Kill the model's runner when it is ready; wait until that is counted."""

    def ready() -> dict[str, Any] | None:
        found = copy_on(node)
        return found if found is not None and found["status"] == "ready" else None

    kill(eventually(ready, PATIENCE_S, "it is ready")["ready"][0]["pid"])
    eventually(lambda: row_on(node).get("in_a_row") == count, 30, f"failure {count} is counted")


def holds(node: Node) -> bool:
    view = view_of(node)
    return view is not None and view["live"] and view["holder"] == node.node_id()


def test_another_nodes_holder_goes_on_counting_and_gives_up_after_the_third(pair: Cluster) -> None:
    first = pair.holder()
    (second,) = [node for node in pair.nodes if node is not first]
    placed = pair.place(excluded_nodes=[first.node_id()])
    assert [shard["node"] for shard in placed["shards"]] == [second.node_id()]
    dies(second, 1)
    dies(second, 2)
    first.kill()
    eventually(lambda: holds(second), PATIENCE_S, "the other node holds the term")
    assert row_on(second)["in_a_row"] == 2
    dies(second, 3)
    given_up = eventually(
        lambda: (one := copy_on(second)) and one["status"] == "failed" and one,
        30,
        "it is not loaded a third time at once",
    )
    assert "given up" in given_up["why"], given_up["why"]


def test_a_holder_that_starts_again_lets_the_pause_pass_before_the_next_attempt(
    pair: Cluster,
) -> None:
    """Three copies, one after the other, so that none fails three times within a minute."""
    holder = pair.holder()
    for count in (1, 2, 3):
        if count != 2:  # the second failure is of the first copy's next generation
            pair.clear()
            pair.place()
        dies(holder, count)
    again_at_s = row_on(holder)["again_at_s"]
    kill(holder.pid("master"))
    eventually(pair.formed, PATIENCE_S, "there is a holder again")
    asker = pair.holder()
    assert row_on(asker)["in_a_row"] == 3
    refused = asker.chat("hi", max_tokens=4)
    assert refused.status_code == 503 and "3 times in a row" in refused.text, refused.text
    eventually(
        lambda: (one := copy_on(asker)) and one["status"] == "ready", PATIENCE_S, "it is loaded"
    )
    told = asker.http.get("/events?limit=500").json()["events"]
    placed = [one["at_s"] for one in told if one["kind"] == "instance_placed"]
    assert placed[-1] >= again_at_s - 1.0, "it was loaded before its pause was over"
    assert asker.chat("hi", max_tokens=4).status_code == 200
