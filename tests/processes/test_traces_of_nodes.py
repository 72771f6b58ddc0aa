"""A traced request whose runner is on another node: its times are told by the gateway's clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, eventually
from tests.harness.traces import check_trace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def pair(shared_pair: Cluster) -> Iterator[Cluster]:
    yield shared_pair
    shared_pair.clear()


def test_the_runner_of_another_node_tells_by_a_clock_that_is_measured(pair: Cluster) -> None:
    eventually(pair.formed, 120, "one cluster")
    here, there = pair.nodes
    pair.place(excluded_nodes=[here.node_id()], if_absent=False)
    turns = [{"role": "user", "content": "Tell me a long story about a fish."}]
    sent = {"model": MODEL, "messages": turns, "max_tokens": 300, "ignore_eos": True}

    def answered() -> str | None:
        answer = here.http.post("/v1/chat/completions", json={**sent, "x_trace": True}, timeout=120)
        return answer.json()["id"] if answer.status_code == 200 else None

    name = eventually(answered, 120, "the other node answers")

    def found() -> dict[str, Any] | None:
        answer = here.http.get(f"/v1/traces/{name}/raw")
        return answer.json() if answer.status_code == 200 else None

    raw = eventually(found, 10, "its trace")
    lead = raw["lead"]
    assert (raw["node"], lead["node"]) == (here.node_id(), there.node_id())
    clock = lead["clock"]
    assert clock["how"] == "measured"
    # both nodes are of this machine, and read one clock
    assert abs(clock["offset_s"]) <= clock["error_s"] < 0.5 * raw["seconds"]
    check_trace(here.http.get(f"/v1/traces/{name}").json())
    # any gateway gets it from the node that has it
    assert there.http.get(f"/v1/traces/{name}/raw", timeout=30).json() == raw
    listed = there.http.get("/v1/traces/cluster", timeout=30).json()
    assert listed["missing"] == [] and listed["traces"][0]["node"] == here.node_id()
    gone = there.http.delete(f"/v1/traces/{name}", timeout=30)
    assert gone.status_code == 200 and gone.json()["removed"] is True
    assert here.http.get(f"/v1/traces/{name}").status_code == 404
