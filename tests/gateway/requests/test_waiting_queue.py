"""What waits for models: order, bounds, deadlines, what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.errors import Refusal
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


def lost(answer: object) -> str:
    assert isinstance(answer, Waiter), answer
    return answer.key


def test_one_model_has_all_places_until_another_is_asked_for() -> None:
    queue = WaitingQueue(limit=4)
    for key, priority, since_at in (("a", 10, 1.0), ("b", 50, 2.0), ("c", 50, 3.0), ("d", 5, 4.0)):
        assert queue.add(waiter(key, M, priority, since_at)) is None
    assert queue.add(waiter("e", M, 1, 5.0)) is not None and "e" not in queue.waiters
    assert lost(queue.add(waiter("o1", OTHER, 50, 6.0))) == "c", "the lowest, the youngest"
    assert lost(queue.add(waiter("o2", OTHER, 50, 7.0))) == "b"
    refused = queue.add(waiter("o3", OTHER, 1, 8.0))
    assert isinstance(refused, Refusal) and refused.reason == "queue_full", "each has its half"
    assert set(queue.waiters) == {"a", "d", "o1", "o2"}


def test_of_the_model_with_most_who_has_most_gives_up() -> None:
    queue = WaitingQueue(limit=4)
    for number in range(3):
        queue.add(replace(waiter(f"hog{number}", since_at=number), sharer=("", "hog")))
    queue.add(replace(waiter("other", priority=50, since_at=9.0), sharer=("", "other")))
    coming = replace(waiter("new", OTHER, 50, 10.0), sharer=("", "hog"))
    assert lost(queue.add(coming)) == "hog2"
    assert "other" in queue.waiters


def test_what_a_runner_gave_back_has_its_place_and_keeps_it() -> None:
    queue = WaitingQueue(limit=2)
    for key in ("a", "b"):
        queue.add(waiter(key))
    for key in ("c", "d", "e"):
        assert queue.add(replace(waiter(key, priority=50), queued_at=0.0)) is None
    assert isinstance(queue.add(waiter("f")), Refusal)
    assert lost(queue.add(waiter("o1", OTHER))) == "b"
    assert isinstance(queue.add(waiter("o2", OTHER)), Refusal), "each has one that can give up"
    assert {"c", "d", "e"} <= set(queue.waiters)


def test_one_that_waits_already_may_be_changed_in_a_full_house() -> None:
    queue = WaitingQueue(limit=2)
    queue.add(waiter("a"))
    queue.add(waiter("b"))
    assert queue.add(replace(waiter("b"), deadline_at=7.0)) is None
    assert queue.waiters["b"].deadline_at == 7.0 and len(queue.waiters) == 2


def test_of_those_that_were_given_back_the_one_with_the_best_standing_asks() -> None:
    queue = WaitingQueue(limit=9)
    queue.add(waiter("never", priority=1))
    assert queue.asks_first(M, 20.0) is None
    queue.add(replace(waiter("batch", priority=50), queued_at=0.0))
    queue.add(replace(waiter("normal", priority=10), queued_at=5.0))
    assert queue.asks_first(M, 5.0) == "normal"
    assert queue.asks_first(M, 14.9) == "batch", "it has nearly aged"
    assert queue.asks_first(OTHER, 14.9) is None


MODELS = [ModelId(name) for name in "abc"]


@given(
    st.integers(1, 8),
    st.lists(
        st.tuples(
            st.sampled_from(MODELS), st.sampled_from("xyz"), st.integers(0, 60), st.booleans()
        ),
        max_size=60,
    ),
)
def test_no_model_fills_the_places_and_none_moves_back_and_forth(
    limit: int, asked: list[tuple[ModelId, str, int, bool]]
) -> None:
    queue = WaitingQueue(limit=limit)
    for number, (model, client, priority, back) in enumerate(asked):
        before = dict(queue.waiters)
        count = {one: sum(w.model == one for w in before.values()) for one in MODELS}
        able = {
            one: sum(w.model == one and w.queued_at is None for w in before.values())
            for one in MODELS
        }
        coming = replace(
            waiter(str(number), model, priority, float(number)),
            sharer=(client,),
            queued_at=0.0 if back else None,
        )
        answer = queue.add(coming)
        if isinstance(answer, Refusal):
            assert not back and len(before) >= limit and queue.waiters == before
            assert max(able.values()) < able[model] + 2, "no other has markedly more"
            continue
        assert coming.key in queue.waiters
        if answer is None:
            assert set(queue.waiters) == {*before, coming.key}
            continue
        assert set(queue.waiters) == {*before, coming.key} - {answer.key}
        assert len(queue.waiters) == len(before) >= limit
        assert answer.queued_at is None and answer.model != model
        assert able[answer.model] == max(able.values()) >= able[model] + 2
        theirs = [w for w in before.values() if w.model == answer.model and w.queued_at is None]
        shares = {one: sum(w.sharer == (one,) for w in theirs) for one in "xyz"}
        assert shares[answer.sharer[0]] == max(shares.values())
        mine = [w for w in theirs if w.sharer == answer.sharer]
        assert count[answer.model] >= len(mine)
        assert answer.priority == max(w.priority for w in mine)


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
    unmeasured = reading(done_bytes=0, total_bytes=0)
    assert loading_text(M, [unmeasured], position=0) == "loading m", "no bytes to compare yet"
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
        why="other is in use; its minimum residency ends in 12 s", ready_in_s=17.6,
    )  # fmt: skip
    said = loading_text(M, [], wait=wait, position=1)
    assert said == (
        f"waiting for {M}: other is in use; its minimum residency ends in 12 s; "
        "ready in about 18 s, "
        "1 ahead of you"
    )
