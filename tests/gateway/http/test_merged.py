"""Runners of several nodes on one line of time, and who of a group keeps the others waiting."""

from __future__ import annotations

from typing import Any

import pytest

from bus.links.clock_offset import DRIFT
from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerReading, PeersReading
from gateway.http.diagnostics.behind import InstanceRank, NodeRunners
from gateway.http.diagnostics.clocks import Clocks, clocks_of
from gateway.http.diagnostics.merged import timeline


def clocks(now_s: float = 10.0, **ahead_s: float) -> Clocks:
    """The clocks of nodes that are so much ahead, as n1 has measured them a second ago."""
    peers = tuple(
        PeerReading(
            node=NodeId(node), name=node, status="linked", silent_s=1.0, round_trip_s=0.02,
            clock_offset_s=ahead,
        )
        for node, ahead in ahead_s.items()
    )  # fmt: skip
    others = PeersReading(
        node=NodeId("n2"),
        peers=(
            PeerReading(
                node=NodeId("n1"), name="n1", status="linked", round_trip_s=1.0, clock_offset_s=50.0
            ),
        ),
    )
    return clocks_of("n1", [others, PeersReading(node=NodeId("n1"), peers=peers)], now_s)


ALIKE = clocks(n2=0.0, n3=0.0)
RANKS = [InstanceRank("i", "m", 2, 0, "n1"), InstanceRank("i", "m", 2, 1, "n2")]


def runner(rank: int, *entries: tuple[float, str], **changes: Any) -> dict[str, Any]:
    return {
        "process": "runner:00", "pid": 10 + rank, "instance": "i", "generation": 2, "rank": rank,
        "model": None, "phase": "ready", "step": 5, "silent_s": 0.4, "halted": False,
        "ended_at_s": None, "exit_code": None, "message": "", "stacks": None,
        "recorder": [{"at_s": at_s, "phase": phase} for at_s, phase in entries], **changes,
    }  # fmt: skip


def at_work(
    rank: int, at_s: float, engine: str, step: int = 41, begun: int = 42, **changes: Any
) -> dict[str, Any]:
    """A rank whose engine has been at this since `at_s` by its own node's clock."""
    made = runner(rank, (1.0, "idle"), **changes)
    made["recorder"].append(
        {
            "at_s": at_s,
            "phase": "steps",
            "since_s": 1.0,
            "step": step,
            "begun": begun,
            "engine": engine,
        }
    )
    return made


def told(*nodes: NodeRunners, placed: list[InstanceRank] = RANKS, **asked: Any) -> dict[str, Any]:
    return timeline(
        nodes,
        placed,
        wanted=asked.get("wanted", lambda _instance, _model: True),
        most=asked.get("most", 128),
        clocks=asked.get("clocks", ALIKE),
        now_s=asked.get("now_s", 10.0),
    )


def two(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return told(NodeRunners("n1", "reef", [first]), NodeRunners("n2", "kelp", [second]))


def test_entries_of_all_nodes_stand_in_the_order_of_time_each_with_whose_it_is() -> None:
    found = two(
        runner(0, (1.0, "idle"), (4.0, "prefill")), runner(1, (2.0, "idle"), (3.0, "steps"))
    )
    assert [(one["at_s"], one["name"], one["rank"]) for one in found["timeline"]] == [
        (1.0, "reef", 0), (2.0, "kelp", 1), (3.0, "kelp", 1), (4.0, "reef", 0),
    ]  # fmt: skip
    assert found["timeline"][0]["error_s"] == 0.0, "the asked node's own clock"
    assert [one["last"]["phase"] for one in found["runners"]] == ["prefill", "steps"]
    assert found["behind"] == [] == found["unreached"]
    assert {one["model"] for one in found["runners"]} == {"m"}


def test_of_each_runner_the_last_entries_are_told_and_only_of_those_asked_about() -> None:
    one = runner(0, *[(float(count), "prefill") for count in range(9)])
    other = runner(0, (1.0, "idle"), instance="j", model="other")
    node = NodeRunners("n1", "reef", [one, other])
    found = told(node, wanted=lambda _instance, model: model == "m", most=2)
    assert [entry["at_s"] for entry in found["timeline"]] == [7.0, 8.0]
    assert [one["instance"] for one in found["runners"]] == ["i"]


def test_a_rank_that_says_nothing_or_is_halted_is_the_one_the_others_wait_for() -> None:
    silent = two(runner(0), runner(1, silent_s=5.2))
    (behind,) = silent["behind"]
    assert (behind["rank"], behind["name"], behind["pid"]) == (1, "kelp", 11)
    assert behind["why"] == "the process has sent nothing for 5.2 s"
    (behind,) = two(runner(0, halted=True), runner(1))["behind"]
    assert behind["rank"] == 0 and "stopped (SIGSTOP" in behind["why"]
    for phase in ("idle", "loading", "warming"):
        loads = {"phase": phase, "silent_s": 5.2}
        assert two(runner(0, **loads), runner(1, **loads))["behind"] == []


def test_of_a_group_that_is_over_the_rank_that_did_not_leave_is_named() -> None:
    left = runner(0, (9.0, "shutdown_cleanup"), ended_at_s=9.5, silent_s=3.5, exit_code=76)
    killed = runner(1, (5.0, "steps"), ended_at_s=17.0, silent_s=12.1, exit_code=-1)
    (behind,) = two(left, killed)["behind"]
    assert behind["rank"] == 1 and behind["why"].startswith("the process died, 12 s after")


def test_a_runner_alone_keeps_no_others_waiting() -> None:
    node = NodeRunners("n1", "reef", [runner(0, silent_s=60.0)])
    assert told(node, placed=[RANKS[0]])["behind"] == []


def test_a_node_that_is_not_reached_is_named_with_the_ranks_that_are_there() -> None:
    away = NodeRunners("n2", "kelp", why="down", message="node kelp is not connected")
    found = told(NodeRunners("n1", "reef", [runner(0, (1.0, "idle"))]), away)
    (unreached,) = found["unreached"]
    assert (unreached["name"], unreached["why"]) == ("kelp", "down")
    assert [rank["rank"] for rank in unreached["ranks"]] == [1]
    (behind,) = found["behind"]
    assert (behind["rank"], behind["why"]) == (1, "the node cannot be reached (down)")
    assert len(found["timeline"]) == 1


def test_what_runs_comes_first_then_the_last_to_end_and_the_recorder_may_know_the_model() -> None:
    gone = [runner(0, instance="gone", ended_at_s=at_s, exit_code=0) for at_s in (3.0, 8.0)]
    gone[0]["recorder"] = [{"at_s": 1.0, "phase": "load_model", "model": "old"}]
    found = told(NodeRunners("n1", "reef", [*gone, runner(0)]), placed=[RANKS[0]])
    assert [one["ended_at_s"] for one in found["runners"]] == [None, 8.0, 3.0]
    assert [one["model"] for one in found["runners"]] == ["m", None, "old"]


def test_entries_stand_by_the_clock_of_the_node_that_was_asked_with_their_error() -> None:
    reef = NodeRunners("n1", "reef", [runner(0, (100.0, "idle"), (104.0, "prefill"))])
    ended = runner(1, (161.0, "idle"), (163.0, "steps"), ended_at_s=170.0, silent_s=0.1)
    ended["recorder"][1]["since_s"] = 162.0
    ahead = clocks(110.0, n2=60.0)
    found = told(reef, NodeRunners("n2", "kelp", [ended]), clocks=ahead, now_s=110.0)
    lines = found["timeline"]
    assert [(one["name"], one["phase"]) for one in lines] == [
        ("reef", "idle"), ("kelp", "idle"), ("kelp", "steps"), ("reef", "prefill"),
    ]  # fmt: skip
    assert [one["at_s"] for one in lines] == pytest.approx([100.0, 101.0, 103.0, 104.0])
    assert lines[2]["since_s"] == pytest.approx(102.0)
    # half the round trip, and what clocks may drift in the time since the entry
    drifts_s = DRIFT * (109.0 - 103.0)
    assert lines[2]["error_s"] == pytest.approx(0.01 + drifts_s, abs=1e-4)
    assert found["runners"][1]["ended_at_s"] == pytest.approx(110.0)
    (mine, theirs) = found["clocks"]
    assert (mine["offset_s"], mine["error_s"]) == (0.0, 0.0)
    assert theirs["offset_s"] == pytest.approx(60.0, abs=1e-3)
    assert theirs["error_s"] == pytest.approx(0.01, abs=1e-3)


def test_a_node_whose_clock_was_not_measured_keeps_its_own_times_and_no_error_is_told() -> None:
    found = told(NodeRunners("n9", "far", [runner(0, (500.0, "idle"))]), placed=[RANKS[0]])
    (line,) = found["timeline"]
    assert (line["at_s"], line["error_s"]) == (500.0, None)
    assert found["clocks"] == [{"node": "n9", "name": "far", "offset_s": None, "error_s": None}]


@pytest.mark.parametrize("hangs", [0, 1])
def test_a_rank_whose_engine_hangs_while_its_process_speaks_is_named(hangs: int) -> None:
    engines = ["compute", "idle"]
    engines[hangs] = "host"
    ranks = [at_work(rank, 100.0 + rank, engines[rank]) for rank in (0, 1)]
    nodes = [NodeRunners(f"n{rank + 1}", "reef", [ranks[rank]]) for rank in (0, 1)]
    (behind,) = told(*nodes, clocks=clocks(109.0, n2=0.0), now_s=109.0)["behind"]
    assert behind["rank"] == hangs
    assert behind["why"].startswith("the engine hangs in step 42") and "8.0 s" in behind["why"]
    # too little time has gone by for that
    assert told(*nodes, clocks=clocks(103.0, n2=0.0), now_s=103.0)["behind"] == []


def test_whose_engine_hangs_is_judged_by_one_clock() -> None:
    """By its own clock the other rank did something a minute ago, or will in a minute."""
    for ahead_s in (-60.0, 60.0):
        for since_s, named in ((1.0, 0), (9.0, 1)):
            nodes = [
                NodeRunners("n1", "reef", [at_work(0, 100.0, "compute")]),
                NodeRunners("n2", "kelp", [at_work(1, 109.0 - since_s + ahead_s, "host")]),
            ]
            found = told(*nodes, clocks=clocks(109.0, n2=ahead_s), now_s=109.0)["behind"]
            assert len(found) == named, (ahead_s, since_s)
    nodes[1] = NodeRunners("n2", "kelp", [at_work(1, 100.0, "host")])
    unmeasured = told(*nodes, clocks=clocks(109.0), now_s=109.0)
    assert unmeasured["behind"] == [], "nothing is said where clocks are not known"


def test_an_engine_that_hung_is_named_when_its_group_has_left_in_good_order() -> None:
    ended: dict[str, Any] = {"ended_at_s": 120.0, "exit_code": 75, "phase": "ended"}
    ranks = [at_work(0, 112.0, "compute", **ended), at_work(1, 111.0, "host", **ended)]
    for one in ranks:
        one["recorder"].append({"at_s": 119.0, "phase": "shutdown_cleanup"})
    nodes = [NodeRunners(f"n{rank + 1}", "reef", [ranks[rank]]) for rank in (0, 1)]
    (behind,) = told(*nodes, clocks=clocks(500.0, n2=0.0), now_s=500.0)["behind"]
    assert (behind["rank"], behind["ended_at_s"]) == (1, pytest.approx(120.0, abs=0.1))


def test_no_engine_is_said_to_hang_where_none_waits_or_another_reason_is_known() -> None:
    def found(*ranks: dict[str, Any]) -> list[tuple[int, str]]:
        nodes = [NodeRunners(f"n{one['rank'] + 1}", "reef", [one]) for one in ranks]
        behind = told(*nodes, clocks=clocks(200.0, n2=0.0), now_s=200.0)["behind"]
        return [(one["rank"], one["why"]) for one in behind]

    idle = [at_work(rank, 100.0, "idle", step=42) for rank in (0, 1)]
    assert found(*idle) == [], "a group with nothing to do"
    assert found(*(at_work(rank, 100.0, "compute") for rank in (0, 1))) == []
    assert found(*(at_work(rank, 100.0, "host") for rank in (0, 1))) == []
    assert found(at_work(0, 100.0, "compute"), runner(1)) == [], "no step was begun there"
    warming = at_work(0, 100.0, "compute", phase="warming")
    assert found(warming, at_work(1, 100.0, "host")) == []
    frozen = found(at_work(0, 100.0, "compute"), at_work(1, 100.0, "host", halted=True))
    assert [(rank, "stopped (SIGSTOP" in why) for rank, why in frozen] == [(1, True)]
