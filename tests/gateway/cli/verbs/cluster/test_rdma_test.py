"""`shoal rdma-test` as it is typed, against a server that answers as a node does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bus.hardware.collective_test import order_of, report_of, timing
from bus.wire.ids import InstanceId
from bus.wire.messages.collectives import Check, CollectiveReading, RankFinding, SizeFinding
from gateway.cli.app import app
from gateway.http.collectives import standing_of
from tests.gateway.cli.node.test_likeness import MINI, cluster
from tests.harness.node_server import NODE, serving, state

TEST = order_of("quick", 1 << 20, ("org/m (i9)",))


def reading(rank: int, wrong: int = 0, phase: Any = "done") -> CollectiveReading:
    check = Check(name="all_sum 7", elements=7, wrong=wrong, first_wrong=4 if wrong else None)
    found = RankFinding(
        checks=(check,),
        latency=timing([50e-6]),
        sizes=(
            SizeFinding(elements=1_024, timing=timing([1e-3])),
            SizeFinding(elements=65_536, timing=timing([1e-4])),
            SizeFinding(elements=1_048_576, skipped=True),
            SizeFinding(elements=16_777_216, skipped=True),
        ),
    )
    return CollectiveReading(
        node=NODE, process="runner:00", instance=InstanceId("t"), rank=rank, size=2,
        backend="ring", test=TEST, phase=phase, done=3, rounds=9, finding=found, pid=1,
        mlx_version="0", device="cpu",
    )  # fmt: skip


def run(
    *words: str, refused: tuple[int, str] | None = None, last: Any = None, looks: int = 1
) -> tuple[Result, list[Any]]:
    """The command, told `looks` times that the test runs and then `last`."""
    asked: list[Any] = []

    def answer(method: str, path: str, body: dict[str, Any]) -> Any:
        asked.append((method, path, body))
        if path == "/state":
            return 200, state([], [])
        if path == "/rdma-test" and refused is not None:
            return refused[0], {"error": {"message": refused[1]}}
        if path == "/rdma-test":
            return 200, {"instance": "t"}
        seen = sum(1 for _, path, _ in asked if path == "/rdma-test/t")
        runs = {"status": "running", "phase": "latency", "done": 3, "rounds": 9}
        return 200, runs if seen <= looks else last

    with serving(answer) as url:
        result = CliRunner().invoke(
            app, ["rdma-test", *words, "--url", url], env={"COLUMNS": "200"}
        )
    return result, asked


def test_all_right_is_exit_code_0_with_verdicts_and_what_was_skipped() -> None:
    result, asked = run(last=standing_of("t", None, [reading(0), reading(1)]))
    assert result.exit_code == 0, result.output
    assert "latency 50 us: excellent" in result.output
    left_out = "(2 larger sizes were skipped: above the memory limit)"
    said = f"with arrays of 262.1 kB: these arrays are too small to judge the link {left_out}"
    assert f"bandwidth 2.62 GB/s {said}" in result.output
    assert "skipped: above the memory limit" in result.output
    assert "org/m (i9) was in memory during the test" in result.output
    assert ("POST", "/rdma-test", {"nodes": [], "mode": "standard"}) in asked


def test_options_become_what_is_asked() -> None:
    words = ("--nodes", "b, a", "--stress", "--backend", "jaccl", "--memory", "500", "--json")
    last = standing_of("t", None, [reading(0), reading(1)])
    result, asked = run(*words, last=last)
    wanted = {
        "nodes": ["b", "a"], "mode": "stress", "backend": "jaccl", "memory_bytes": 500_000_000,
    }  # fmt: skip
    assert ("POST", "/rdma-test", wanted) in asked
    assert json.loads(result.stdout) == last
    assert report_of([reading(0), reading(1)]).model_dump(mode="json") == last["report"]  # type: ignore[index]


def test_a_wrong_element_is_exit_code_1_and_is_told_with_its_rank_and_place() -> None:
    result, _ = run(last=standing_of("t", None, [reading(0), reading(1, wrong=2)]))
    assert result.exit_code == 1
    assert "WRONG at rank 1 on desk: all_sum 7: 2 of 7 elements, the first at 4" in result.output


def test_a_lost_rank_is_exit_code_1_and_an_error_that_names_it() -> None:
    error = {"code": "rank_lost", "message": "cannot be reached", "rank": 1, "node": NODE}
    last = {"status": "failed", "passed": False, "report": None, "error": error}
    result, _ = run(last=last)
    assert result.exit_code == 1 and "rank 1 on desk: cannot be reached" in result.output


@pytest.mark.parametrize(("status", "code"), [(400, 1), (404, 4), (409, 5), (507, 5)])
def test_a_refusal_keeps_its_words(status: int, code: int) -> None:
    result, _ = run(refused=(status, "needs at least two nodes"))
    assert result.exit_code == code and "needs at least two nodes" in result.output


def test_a_wrong_command_line_is_said_before_anything_is_asked() -> None:
    for words in (("--quick", "--stress"), ("--backend", "mpi")):
        result, asked = run(*words)
        assert result.exit_code == 2 and asked == []


def verified(body: dict[str, Any], last: Any, *words: str) -> tuple[Result, list[Any]]:
    asked: list[Any] = []

    def answer(method: str, path: str, said: dict[str, Any]) -> Any:
        asked.append((method, path, said))
        if path == "/state":
            return 200, body
        return 200, {"instance": "t"} if path == "/rdma-test" else last

    with serving(answer) as url:
        result = CliRunner().invoke(app, ["verify", *words, "--url", url], env={"COLUMNS": "200"})
    return result, asked


def test_verify_tells_of_the_nodes_and_tests_what_joins_them() -> None:
    last = standing_of("t", None, [reading(0), reading(1)])
    result, asked = verified(cluster(), last, "--quick", "--memory", "500")
    assert result.exit_code == 0, result.output
    assert "2 nodes: aligned" in result.output and "all correct" in result.output
    assert "no problems found" in result.output
    body = {"nodes": [MINI, NODE], "mode": "quick", "memory_bytes": 500_000_000}
    assert ("POST", "/rdma-test", body) in asked
    said = json.loads(verified(cluster(), last, "--json")[0].stdout)
    assert said["well"] and said["cluster"]["well"] and said["collectives"]["passed"]


def test_verify_fails_with_either_half() -> None:
    wrong = standing_of("t", None, [reading(0), reading(1, wrong=2)])
    result, _ = verified(cluster(), wrong)
    assert result.exit_code == 1 and "problems found" in result.output
    apart, asked = verified(cluster(mlx_version="0.1.0"), wrong)
    assert apart.exit_code == 1 and "needs identical nodes" in apart.output
    assert not any(path == "/rdma-test" for _, path, _ in asked)


def test_one_node_alone_is_verified_without_a_test() -> None:
    body = cluster()
    body["telemetry"]["cards"] = body["telemetry"]["cards"][:1]
    body["telemetry"]["peers"][NODE]["peers"] = []
    result, asked = verified(body, None)
    assert result.exit_code == 0, result.output
    assert [path for _, path, _ in asked] == ["/state"]
