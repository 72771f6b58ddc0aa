"""A group over two real nodes, looked into from either: who keeps the others waiting when a rank is
frozen or killed, a request that is ended at its runner, and a process of the other node.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.harness.clusters import Cluster
from tests.harness.nodes import Node, eventually, kill

pytestmark = [pytest.mark.nodes, pytest.mark.slow, pytest.mark.timeout(900)]

STORY = "Tell me a long story about a fish."
LONG: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True}
LOOK = "/v1/diagnostics/cluster"


@pytest.fixture(scope="module")
def pair(shared_pair: Cluster) -> Cluster:
    return shared_pair


@pytest.fixture
def group(pair: Cluster) -> Iterator[dict[str, Any]]:
    """A copy over both nodes; nothing is placed afterwards."""
    eventually(pair.formed, 120, "one cluster")
    yield pair.place(min_nodes=2)
    pair.clear()


def rank_of(pair: Cluster, placed: dict[str, Any], rank: int) -> tuple[Node, dict[str, Any]]:
    """The node of a rank, and what the state says of its runner."""
    (ready,) = [one for one in placed["ready"] if one["rank"] == rank]
    return pair.by_id(ready["node"]), ready


def timeline(node: Node, **asked: Any) -> dict[str, Any]:
    found = node.http.get(f"{LOOK}/timeline", params=asked, timeout=30)
    assert found.status_code == 200, found.text
    return found.json()


def named(node: Node, pid: int) -> dict[str, Any] | None:
    """What the timeline says of a rank that keeps the others waiting."""
    return next((one for one in timeline(node)["behind"] if one.get("pid") == pid), None)


def last_account(node: Node, pid: int) -> dict[str, Any] | None:
    """What the timeline says of a runner that has ended."""
    runners = timeline(node)["runners"]
    return next((one for one in runners if one["pid"] == pid and one["ended_at_s"]), None)


def phases(node: Node, pid: int) -> set[str]:
    return {one["phase"] for one in timeline(node)["timeline"] if one["pid"] == pid}


def test_both_ranks_stand_on_one_line_of_time_with_their_memory(
    pair: Cluster, group: dict[str, Any]
) -> None:
    asked = pair.nodes[1]
    assert pair.nodes[0].chat(STORY, max_tokens=40, ignore_eos=True).status_code == 200
    pids = {rank: rank_of(pair, group, rank)[1]["pid"] for rank in (0, 1)}
    eventually(lambda: "completion" in phases(asked, pids[0]), 30, "rank 0 has told of its end")
    eventually(lambda: "steps" in phases(asked, pids[1]), 30, "rank 1 has told of its steps")
    found = timeline(asked, instance=group["instance"])
    lines = [one for one in found["timeline"] if one["pid"] in pids.values()]
    assert [one["at_s"] for one in lines] == sorted(one["at_s"] for one in lines)
    assert {(one["rank"], one["pid"]) for one in lines} == set(pids.items())
    assert {"decode_stream", "kv_cache_lookup"} <= phases(asked, pids[0])
    for rank, pid in pids.items():
        last = [one for one in lines if one["pid"] == pid][-1]
        assert last["memory"]["active_bytes"] > 0 < last["memory"]["limit_bytes"], rank
    assert found["behind"] == [] == found["unreached"]
    assert all(one["error_s"] is not None for one in lines), "the bus has measured both clocks"
    clocks = {one["node"]: one for one in found["clocks"]}
    mine, theirs = clocks.pop(asked.node_id()), clocks.pop(pair.nodes[0].node_id())
    assert (mine["offset_s"], mine["error_s"]) == (0.0, 0.0)
    assert abs(theirs["offset_s"]) <= theirs["error_s"], "both nodes are of this machine"
    assert {"begun", "engine"} <= next(one for one in lines if one["phase"] == "steps").keys()
    assert timeline(asked, model="another")["runners"] == []
    assert asked.http.get(f"{LOOK}/timeline", params={"node": "attic"}).status_code == 400


@pytest.mark.proof
def test_a_request_is_ended_at_its_runner_from_either_node(
    pair: Cluster, group: dict[str, Any]
) -> None:
    lead, ready = rank_of(pair, group, 0)
    other, second = rank_of(pair, group, 1)
    stream = lead.stream(STORY, **LONG, x_resume=False).flowing()
    (open_one,) = lead.http.get("/queue").json()["requests"]
    asked = {"request_id": open_one["request"]}

    def cancel(node: Node, where: str, process: str, body: Any = asked) -> httpx.Response:
        return node.http.post(f"{LOOK}/{where}/runners/{process}/cancel", json=body, timeout=30)

    followed = cancel(lead, other.node_id(), second["process"])
    assert followed.status_code == 409 and "ask rank 0" in followed.text
    ended = cancel(other, lead.node_id(), ready["process"])
    assert ended.status_code == 200, ended.text
    assert ended.json() == {
        "id": asked["request_id"], "node": lead.node_id(), "process": ready["process"],
        "cancelled": True,
    }  # fmt: skip
    stream.wait(60)
    assert stream.error is None and stream.done
    assert cancel(other, lead.node_id(), ready["process"]).json()["cancelled"], "said again"
    path = f"/v1/diagnostics/node/runners/{ready['process']}/cancel"
    unknown = lead.http.post(path, json={"request_id": "req-nowhere-h0-00000000-1"})
    assert (unknown.status_code, unknown.json()["cancelled"]) == (200, False)
    assert lead.http.post(path, json={"id": "x"}).status_code == 400
    assert cancel(other, lead.node_id(), "bus").status_code == 404
    assert cancel(other, "attic", ready["process"]).status_code == 404
    assert lead.chat("hi", max_tokens=4).status_code == 200


@pytest.mark.proof
def test_a_process_of_the_other_node_is_looked_into(pair: Cluster) -> None:
    first, second = pair.nodes
    path = f"{LOOK}/kelp/processes/telemetry"
    assert first.http.get(f"{LOOK}/kelp", timeout=30).json()["node"] == second.node_id()
    found = first.http.get(f"{path}/stacks", timeout=60)
    assert found.status_code == 200, found.text
    assert found.json()["pid"] == second.pid("telemetry")
    missing = first.http.get(f"{LOOK}/kelp/processes/nothing/stacks", timeout=60)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "process_not_found")
    if not second.http.get("/v1/diagnostics/node").json()["diagnosis"]["py_spy"]:
        pytest.skip("py-spy may not be used here")
    # longer than a node may be silent: it says that it is at it
    profile = first.http.post(f"{path}/profile", json={"seconds": 6}, timeout=90)
    assert profile.status_code == 200, profile.text
    files = {frame["file"] for frame in json.loads(profile.content)["shared"]["frames"]}
    assert any("telemetry/" in file for file in files)


@pytest.mark.proof
def test_a_frozen_rank_is_named_and_its_stacks_go_with_its_last_account(
    pair: Cluster, group: dict[str, Any]
) -> None:
    lead, _ = rank_of(pair, group, 0)
    _, ready = rank_of(pair, group, 1)
    pid = ready["pid"]
    stream = lead.stream(STORY, **LONG, x_resume=False).flowing()
    kill(pid, signal.SIGSTOP)
    behind = eventually(lambda: named(lead, pid), 60, "the frozen rank is named")
    assert (behind["rank"], behind["instance"]) == (1, group["instance"])
    stream.wait(60)
    assert stream.error is not None
    account = eventually(lambda: last_account(lead, pid), 120, "it was ended by its worker")
    eventually(lambda: not psutil.pid_exists(pid), 30, "it is gone")
    again = named(lead, pid)
    assert again is not None and again["why"].startswith("the process died")
    assert {"load_model", "steps"} <= phases(lead, pid)
    stacks = account["stacks"]
    assert stacks["pid"] == pid
    assert stacks["threads"] or stacks["note"]
    if lead.http.get("/v1/diagnostics/node").json()["diagnosis"]["py_spy"]:
        files = {frame["filename"] for one in stacks["threads"] for frame in one["frames"]}
        assert any("runner/" in file for file in files), stacks["note"]


def test_a_rank_that_was_killed_is_named_with_what_it_did_last(
    pair: Cluster, group: dict[str, Any]
) -> None:
    lead, _ = rank_of(pair, group, 0)
    _, ready = rank_of(pair, group, 1)
    stream = lead.stream(STORY, **LONG, x_resume=False).flowing()
    kill(ready["pid"], signal.SIGKILL)
    account = eventually(lambda: last_account(lead, ready["pid"]), 60, "its worker tells of it")
    assert (account["exit_code"], account["rank"], account["stacks"]) == (-1, 1, None)
    assert account["last"]["memory"]["peak_bytes"] > 0
    behind = named(lead, ready["pid"])
    assert behind is not None and behind["rank"] == 1
    stream.wait(60)
    assert stream.error is not None
    said = lead.shoal("timeline", group["model"])
    assert said.returncode == 0, said.stderr
    assert f"rank 1 of {group['model']}" in said.stderr and "was behind" in said.stderr


@pytest.mark.proof
def test_a_node_that_is_gone_is_named(pair: Cluster) -> None:
    first, second = pair.nodes
    second.kill()

    def unreached() -> dict[str, Any] | None:
        found = {one["name"]: one for one in timeline(first)["unreached"]}
        return found["kelp"] if found.get("kelp", {}).get("why") == "down" else None

    assert "kelp is not connected" in eventually(unreached, 60, "it is named as down")["message"]
    answer = first.http.get(f"{LOOK}/kelp/processes/bus/stacks", timeout=30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "owner_down")
    second.up(180.0)
    eventually(pair.formed, 120, "one cluster again")
