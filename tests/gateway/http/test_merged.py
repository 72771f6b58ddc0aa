"""Runners of several nodes on one line of time, and who of a group keeps the others waiting."""

from __future__ import annotations

from typing import Any

from gateway.http.diagnostics.merged import CopyRank, NodeRunners, timeline

RANKS = [CopyRank("i", "m", 2, 0, "n1"), CopyRank("i", "m", 2, 1, "n2")]


def runner(rank: int, *entries: tuple[float, str], **changes: Any) -> dict[str, Any]:
    return {
        "process": "runner:00", "pid": 10 + rank, "instance": "i", "generation": 2, "rank": rank,
        "model": None, "phase": "ready", "step": 5, "silent_s": 0.4, "halted": False,
        "ended_at_s": None, "exit_code": None, "message": "", "stacks": None,
        "recorder": [{"at_s": at_s, "phase": phase} for at_s, phase in entries], **changes,
    }  # fmt: skip


def told(*nodes: NodeRunners, placed: list[CopyRank] = RANKS, **asked: Any) -> dict[str, Any]:
    wanted = asked.get("wanted", lambda _instance, _model: True)
    return timeline(nodes, placed, wanted=wanted, most=asked.get("most", 128))


def two(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return told(NodeRunners("n1", "reef", [first]), NodeRunners("n2", "kelp", [second]))


def test_entries_of_all_nodes_stand_in_the_order_of_time_each_with_whose_it_is() -> None:
    found = two(
        runner(0, (1.0, "idle"), (4.0, "prefill")), runner(1, (2.0, "idle"), (3.0, "steps"))
    )
    assert [(one["at_s"], one["name"], one["rank"]) for one in found["timeline"]] == [
        (1.0, "reef", 0), (2.0, "kelp", 1), (3.0, "kelp", 1), (4.0, "reef", 0),
    ]  # fmt: skip
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
    assert behind["why"] == "it has said nothing for 5.2 s"
    (behind,) = two(runner(0, halted=True), runner(1))["behind"]
    assert behind["rank"] == 0 and "halted" in behind["why"]
    for phase in ("idle", "loading", "warming"):
        loads = {"phase": phase, "silent_s": 5.2}
        assert two(runner(0, **loads), runner(1, **loads))["behind"] == []


def test_of_a_group_that_is_over_the_rank_that_did_not_leave_is_named() -> None:
    left = runner(0, (9.0, "shutdown_cleanup"), ended_at_s=9.5, silent_s=3.5, exit_code=76)
    killed = runner(1, (5.0, "steps"), ended_at_s=17.0, silent_s=12.1, exit_code=-1)
    (behind,) = two(left, killed)["behind"]
    assert behind["rank"] == 1 and behind["why"].startswith("it ended without leaving, 12 s after")


def test_a_runner_alone_keeps_no_others_waiting() -> None:
    node = NodeRunners("n1", "reef", [runner(0, silent_s=60.0)])
    assert told(node, placed=[RANKS[0]])["behind"] == []


def test_a_node_that_is_not_reached_is_named_with_the_ranks_that_are_there() -> None:
    away = NodeRunners("n2", "kelp", why="down", message="node kelp is not there")
    found = told(NodeRunners("n1", "reef", [runner(0, (1.0, "idle"))]), away)
    (unreached,) = found["unreached"]
    assert (unreached["name"], unreached["why"]) == ("kelp", "down")
    assert [rank["rank"] for rank in unreached["ranks"]] == [1]
    (behind,) = found["behind"]
    assert (behind["rank"], behind["why"]) == (1, "its node was not reached (down)")
    assert len(found["timeline"]) == 1


def test_what_runs_comes_first_then_the_last_to_end_and_the_recorder_may_know_the_model() -> None:
    gone = [runner(0, instance="gone", ended_at_s=at_s, exit_code=0) for at_s in (3.0, 8.0)]
    gone[0]["recorder"] = [{"at_s": 1.0, "phase": "load_model", "model": "old"}]
    found = told(NodeRunners("n1", "reef", [*gone, runner(0)]), placed=[RANKS[0]])
    assert [one["ended_at_s"] for one in found["runners"]] == [None, 8.0, 3.0]
    assert [one["model"] for one in found["runners"]] == ["m", None, "old"]
