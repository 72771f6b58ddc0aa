"""How a collective test stands, from its beginning to ten minutes after its end."""

from __future__ import annotations

from typing import Any

from bus.hardware.collective_test import order_of
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.collectives import TEST_MODEL, Check, CollectiveReading, RankFinding
from gateway.http.collectives import ENDED, standing_of

TEST = order_of("quick", 1 << 20)


def instance(status: Any = "ready", **more: Any) -> Instance:
    fields: dict[str, Any] = {
        "instance": InstanceId("t"), "model": TEST_MODEL, "context_tokens": 0, "test": TEST,
        "keep_alive_s": -1.0, "status": status, "shards": tuple(
            Shard(rank=r, node=NodeId(f"n{r}"), first_layer=0, last_layer=0, bytes_reserved=1)
            for r in (0, 1)
        ),
    }  # fmt: skip
    return Instance(**{**fields, **more})


def reading(rank: int, phase: Any = "done", done: int = 9, wrong: int = 0) -> CollectiveReading:
    check = Check(name="all_sum 7", elements=7, wrong=wrong, first_wrong=None)
    return CollectiveReading(
        node=NodeId(f"n{rank}"), process="runner:00", instance=InstanceId("t"), rank=rank, size=2,
        backend="ring", test=TEST, phase=phase, done=done, rounds=9,
        finding=RankFinding(checks=(check,)), pid=1, mlx_version="0", device="cpu",
    )  # fmt: skip


def standing(held: Instance | None, *readings: CollectiveReading) -> dict[str, Any]:
    found = standing_of("t", held, readings)
    assert found is not None
    return found


def test_there_is_no_such_test_as_one_of_a_model_or_of_nothing() -> None:
    assert standing_of("t", None, ()) is None
    assert standing_of("t", instance(model=ModelId("m"), test=None), ()) is None


def test_progress_is_that_of_the_rank_that_is_furthest_behind() -> None:
    begun = standing(instance("placed"))
    assert (begun["phase"], begun["done"], begun["rounds"]) == ("forming", 0, 0)
    found = standing(instance(), reading(0, "bandwidth", 7), reading(1, "latency", 4))
    assert (found["status"], found["phase"], found["done"]) == ("running", "latency", 4)
    assert not found["passed"], "all is right so far, and the test has not ended"
    alone = standing(instance(), reading(0, "bandwidth", 7))
    assert (alone["status"], alone["phase"]) == ("running", "forming")


def test_it_is_done_when_all_ranks_are_whether_or_not_it_is_in_the_state_still() -> None:
    for held in (instance(), instance("draining"), None):
        found = standing(held, reading(0), reading(1))
        assert (found["status"], found["passed"], found["error"]) == ("done", True, None)


def test_wrong_elements_are_done_and_not_passed() -> None:
    found = standing(None, reading(0), reading(1, wrong=1))
    assert (found["status"], found["passed"]) == ("done", False)
    assert found["report"]["wrong"][0]["rank"] == 1


def test_a_rank_that_was_lost_is_a_typed_error_and_what_was_found_stays() -> None:
    why = "rank 0 on node n0: rank 1 on node n1 cannot be reached"
    found = standing(instance("failed", why=why), reading(0, "latency"), reading(1, "latency"))
    assert found["status"] == "failed" and found["report"]["checks"] == 2
    error = found["error"]
    assert (error["code"], error["rank"], error["node"]) == ("rank_lost", 1, "n1")
    assert error["message"] == why


def test_one_that_was_ended_early_says_so() -> None:
    for held in (instance("draining", why="deleted"), None):
        found = standing(held, reading(0, "latency"), reading(1))
        assert found["status"] == "failed"
        assert found["error"]["code"] == "ended" and found["error"]["message"] == ENDED
