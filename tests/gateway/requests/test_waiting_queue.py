"""What waits for models: order, bounds, deadlines, what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.readings import FetchPhase, FetchReading, RunnerReading, WeightsReading
from bus.wire.pool import PoolWait
from gateway.requests.routing import has_place
from gateway.requests.waiting_queue import Waiter, WaitingQueue, loading_text

M, OTHER = ModelId("m"), ModelId("other")


def waiter(key: str, model: ModelId = M, priority: int = 10, since_at: float = 0.0) -> Waiter:
    return Waiter(key, model, priority, since_at, since_at + 100)


def reading(**facts: Any) -> RunnerReading:
    numbers = {
        name: 0
        for name, field in RunnerReading.model_fields.items()
        if field.annotation in (int, float) and field.is_required()
    }
    known = {
        "node": NodeId("n"),
        "process": "runner:00",
        "instance": InstanceId("i"),
        "model": M,
        "phase": "loading",
        "best_waiting_priority": None,
    }
    return RunnerReading.model_validate({**numbers, **known, **facts})


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 100)), max_size=30))
def test_waiters_go_by_priority_then_age(found: list[tuple[int, float]]) -> None:
    demand = WaitingQueue(limit=100)
    for number, (priority, since_at) in enumerate(found):
        assert demand.add(waiter(str(number), M, priority, since_at)) is None
    order = [(one.priority, one.since_at) for one in demand.of(M)]
    assert order == sorted(order)
    assert len(order) == len(found)


def test_a_full_house_refuses_with_a_place_and_a_time() -> None:
    demand = WaitingQueue(limit=2)
    assert demand.add(waiter("a")) is None
    assert demand.add(waiter("b")) is None
    refusal = demand.add(waiter("c"))
    assert refusal is not None and refusal.reason == "queue_full"
    assert refusal.position == 3
    assert refusal.retry_after_s is not None
    demand.remove("a")
    assert demand.add(waiter("c")) is None


def test_who_asks_once_is_not_behind_all_that_another_asks_for() -> None:
    demand = WaitingQueue(limit=10)
    for number in range(4):
        demand.add(replace(waiter(f"hog{number}", since_at=number), sharer=("", "hog")))
    demand.add(replace(waiter("other", since_at=9.0), sharer=("", "other")))
    assert [one.key for one in demand.of(M)] == ["hog0", "other", "hog1", "hog2", "hog3"]
    assert demand.position("other") == 1
    demand.remove("hog0")
    assert [one.key for one in demand.of(M)] == ["hog1", "other", "hog2", "hog3"]


def test_a_full_house_takes_one_more_from_who_has_less_than_another() -> None:
    demand = WaitingQueue(limit=3)
    for number in range(3):
        assert demand.add(replace(waiter(f"hog{number}"), sharer=("", "hog"))) is None
    assert demand.add(replace(waiter("hog3"), sharer=("", "hog"))) is not None
    assert demand.add(replace(waiter("other"), sharer=("", "other"))) is None


def test_a_model_that_cannot_load_blocks_no_other() -> None:
    demand = WaitingQueue(limit=10)
    demand.add(waiter("a", OTHER, 1))
    demand.add(waiter("b", M, 50))
    assert [one.key for one in demand.of(M)] == ["b"]
    assert demand.position("b") == 0


def test_a_deadline_is_met_on_time_and_the_waiter_stays_until_removed() -> None:
    demand = WaitingQueue(limit=10)
    demand.add(waiter("a", since_at=5.0))
    assert demand.expired(104.9) == []
    assert [one.key for one in demand.expired(105.0)] == ["a"]
    demand.remove("a")
    assert demand.expired(200.0) == []


def test_the_reading_tells_each_models_need_most_urgent_first() -> None:
    demand = WaitingQueue(limit=10)
    demand.add(waiter("a", M, 10, 3.0))
    demand.add(waiter("b", M, 20, 1.0))
    demand.add(waiter("c", OTHER, 5, 4.0))
    told = demand.reading(NodeId("n"), "gateway:0", 5.0)
    assert [(one.model, one.waiting, one.best_priority, one.oldest_s) for one in told.models] == [
        (OTHER, 1, 5, 1.0),
        (M, 2, 10, 4.0),
    ]


def test_a_runner_has_a_place_until_its_rows_and_its_queue_are_full() -> None:
    told = reading(max_running=2, max_waiting=1)
    assert [has_place(told, rows) for rows in range(4)] == [True, True, True, False]
    assert has_place(None, 1000)


def test_loading_is_told_in_per_cent_and_bytes() -> None:
    half = [reading(done_bytes=50_000_000, total_bytes=100_000_000)]
    assert loading_text(M, half, position=0) == "loading 50 % (50 of 100 MB) m"
    assert loading_text(M, half, position=2).endswith("2 ahead of you")
    assert loading_text(M, [reading(phase="warming")], position=0) == "warming m"
    assert loading_text(OTHER, half, position=0) == "waiting for other to be loaded"
    ranks = [*half, reading(done_bytes=10_000_000, total_bytes=100_000_000)]
    assert loading_text(M, ranks, position=0).startswith("loading 10 %"), "the last of the ranks"


def test_weights_on_their_way_are_told_of_by_the_node_that_is_furthest_behind() -> None:
    def fetching(node: str, phase: FetchPhase, done: int) -> WeightsReading:
        one = FetchReading(
            model=M, phase=phase, done_bytes=done, total_bytes=100_000_000, bytes_per_s=2e7
        )
        return WeightsReading(node=NodeId(node), fetches=(one,))

    both = [fetching("a", "fetching", 70_000_000), fetching("b", "fetching", 30_000_000)]
    told = "fetching 30 % (30 of 100 MB, 20 MB/s) m"
    assert loading_text(M, [], both, position=0) == told
    over = [fetching("a", "done", 100_000_000), fetching("b", "failed", 30_000_000)]
    assert loading_text(M, [], over, position=0) == "waiting for m to be loaded"


def test_each_class_that_waits_is_told_with_its_own_age() -> None:
    demand = WaitingQueue(limit=9)
    for key, priority, since_at in (("a", 50, 1.0), ("b", 10, 8.0), ("c", 50, 5.0)):
        demand.add(waiter(key, M, priority, since_at))
    (told,) = demand.reading(NodeId("n"), "gateway:0", 10.0).models
    classes = [(one.priority, one.waiting, one.oldest_s) for one in told.classes]
    assert classes == [(10, 1, 2.0), (50, 2, 9.0)]


def test_who_waits_for_memory_is_told_for_what() -> None:
    wait = PoolWait(
        model=M, kind="demand", priority=10, standing=9.0, waited_s=2.0, phase="waiting",
        why="other is in use and keeps its turn for 12 s more", ready_in_s=17.6,
    )  # fmt: skip
    said = loading_text(M, [], wait=wait, position=1)
    assert said == (
        f"waiting for {M}: other is in use and keeps its turn for 12 s more; ready in about 18 s, "
        "1 ahead of you"
    )
