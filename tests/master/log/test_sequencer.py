from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.replica.state import MAX_COMMANDS, ClusterState, apply
from bus.wire.ids import Boot, CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.control import AskEvents, TellFact
from bus.wire.messages.events import (
    Event,
    FactId,
    InstancePlaced,
    NodeJoined,
    NodeRenamed,
    RunnerReady,
)
from master.log.recent_events import RecentEvents, describe_undone, let_go
from master.log.sequencer import judge
from tests.harness.drafts import fact_event, next_event

NODE = NodeId("n1")


def told(seq: int, *, boot: str = "b1", name: str | None = None) -> TellFact:
    fact = NodeJoined(node=NODE, name=name or f"{boot}-{seq}")
    return TellFact(
        fact=fact, fact_id=FactId(node=NODE, process="worker", boot=Boot(boot), seq=seq)
    )


def take(state: ClusterState, fact: TellFact) -> ClusterState:
    if judge(state, fact) != "next":
        return state
    return apply(state, fact_event(state, fact, term=1, at_s=0.0))


def test_a_fact_is_taken_once_and_in_its_own_order() -> None:
    state = ClusterState()
    assert judge(state, told(2)) == "early"
    state = take(state, told(1))
    assert judge(state, told(1)) == "known"
    assert judge(state, told(3)) == "early"
    state = take(state, told(2))
    assert (state.index, state.facts["n1/worker"]) == (2, ("b1", 2))


def test_a_new_boot_begins_at_one() -> None:
    state = take(take(ClusterState(), told(1)), told(2))
    assert judge(state, told(3, boot="b2")) == "early"
    assert judge(state, told(1, boot="b2")) == "next"


@given(
    st.lists(st.integers(min_value=1, max_value=6), max_size=60),
    st.integers(min_value=1, max_value=6),
)
def test_repeats_losses_and_disorder_leave_each_fact_indexed_once(
    arrivals: list[int], upto: int
) -> None:
    state, names = ClusterState(), list[str]()
    for seq in [*arrivals, *range(1, upto + 1)]:
        before, state = state.index, take(state, told(seq))
        if state.index != before:
            names.append(state.nodes["n1"].name)
    assert names == [f"b1-{seq}" for seq in range(1, len(names) + 1)]
    assert len(names) >= upto


def test_a_fact_of_an_older_generation_takes_a_place_but_changes_no_instance() -> None:
    shard = Shard(rank=0, node=NODE, first_layer=0, last_layer=2, bytes_reserved=1)
    instance = Instance(
        instance=InstanceId("i"), model="m", shards=(shard,), generation=3, context_tokens=8,
        keep_alive_s=1.0,
    )  # fmt: skip
    placed = InstancePlaced(instance=instance)
    state = apply(ClusterState(), next_event(ClusterState(), placed, term=1, at_s=0.0))
    old = RunnerReady(
        instance=instance.instance, generation=2, rank=0, node=NODE, process="runner:00", pid=1,
        addresses=(),
    )  # fmt: skip
    fact = TellFact(fact=old, fact_id=FactId(node=NODE, process="worker", boot=Boot("b"), seq=1))
    after = take(state, fact)
    assert after.index == state.index + 1
    assert after.instances == state.instances


def renamed(index: int, command: str, *, term: int = 2) -> Event:
    body = NodeRenamed(node=NodeId("a"), name=command)
    return Event(term=term, index=index, at_s=0.0, body=body, command_id=CommandId(command))


def test_what_another_log_lacks_of_this_one_is_undone() -> None:
    shared, mine, theirs = renamed(1, "shared"), renamed(2, "mine"), renamed(2, "theirs", term=3)
    history, state = RecentEvents(), ClusterState()
    for event in (shared, mine):
        history.keep(event)
    for event in (shared, theirs):
        state = apply(state, event)
    assert history.undone(state) == (mine,)
    assert RecentEvents().undone(state) == ()


def test_commands_that_no_state_remembers_any_more_do_not_count_as_undone() -> None:
    history, state = RecentEvents(), ClusterState()
    for index in range(1, MAX_COMMANDS + 10):
        event = renamed(index, f"c{index}")
        history.keep(event)
        state = apply(state, event)
    assert history.undone(state) == ()


def holding(state: ClusterState, *names: str, **changes: Any) -> ClusterState:
    copies = {name: copy_of(name) for name in names}
    return state.model_copy(update={"instances": copies, **changes})


def copy_of(name: str) -> Instance:
    shard = Shard(rank=0, node=NodeId("a"), first_layer=0, last_layer=1, bytes_reserved=1)
    return Instance(
        instance=InstanceId(name),
        model=ModelId("m"),
        shards=(shard,),
        context_tokens=8,
        keep_alive_s=1.0,
        status="ready",
    )


TOLD = {"a/worker": ("b1", 7), "b/worker": ("b2", 3)}
MINE = ClusterState(term=4, holder=NodeId("a"), index=30, facts=TOLD)


@pytest.mark.parametrize(
    ("later", "gone"),
    [
        ({"index": 5000, "term": 9, "holder": NodeId("b")}, ()),
        ({"index": 31}, ()),
        ({"index": 5000, "facts": {"a/worker": ("b9", 1), "b/worker": ("b2", 3)}}, ()),
        ({"index": 29}, ("i1",)),
        ({"index": 40, "term": 3}, ("i1",)),
        ({"index": 40, "holder": NodeId("b")}, ("i1",)),
        ({"index": 40, "term": 9, "facts": {"b/worker": ("b2", 3)}}, ("i1",)),
        ({"index": 40, "term": 9, "facts": {**TOLD, "a/worker": ("b1", 6)}}, ("i1",)),
    ],
)
def test_copies_are_let_go_where_the_log_is_another_and_not_where_it_went_on(
    later: dict[str, Any], gone: tuple[str, ...]
) -> None:
    before = holding(MINE, "i1", "i2")
    after = holding(MINE, "i2", **later)
    assert tuple(copy.instance for copy in let_go(before, after)) == gone


def test_each_undone_change_and_copy_is_described_once() -> None:
    placed = InstancePlaced(instance=copy_of("i1"))
    mine = Event(term=1, index=1, at_s=0.0, body=placed, command_id=CommandId("c1"))
    told = describe_undone([mine, renamed(2, "x")], [copy_of("i1"), copy_of("i2")], 5.0)
    assert [(one.what, one.about, one.command_id) for one in told] == [
        ("instance_placed", "m (i1)", "c1"),
        ("node_renamed", "node a, name x", "x"),
        ("instance_placed", "m (i2)", None),
    ]


def events(count: int) -> RecentEvents:
    history, state = RecentEvents(limit=5), ClusterState()
    for number in range(count):
        event = next_event(state, NodeJoined(node=NODE, name=str(number)), term=1, at_s=0.0)
        state = apply(state, event)
        history.keep(event)
    return history


def test_history_finds_what_it_keeps_and_says_when_it_does_not() -> None:
    history = events(8)
    found = history.find(AskEvents(first=5, last=100))
    assert [e.index for e in found.events] == [5, 6, 7, 8] and found.complete
    assert history.find(AskEvents(first=3, last=8)).complete is False
    nothing_new = history.find(AskEvents(first=9, last=9))
    assert (nothing_new.events, nothing_new.complete) == ((), True)
    assert history.find(AskEvents(first=11, last=12)).complete is False, "not of this log"


def test_history_is_bounded_in_bytes_and_the_newest_event_is_always_kept() -> None:
    history, state, longest = RecentEvents(limit_bytes=4_000), ClusterState(), 0
    for number in range(60):
        name = "n" * (number * number % 5_000)
        event = next_event(state, NodeJoined(node=NODE, name=name), term=1, at_s=0.0)
        state = apply(state, event)
        history.keep(event)
        longest = max(longest, len(name))
        kept = history.find(AskEvents(first=history.first, last=history.last))
        assert kept.complete and kept.events[-1] == event
        assert [one.index for one in kept.events] == list(range(history.first, history.last + 1))
        packed = sum(len(one.packed) for one in history.events.values())
        assert history.size_bytes == packed
        assert packed <= 4_000 or len(history.events) == 1
    assert longest > 3_000 and history.first > 1


def test_an_empty_history_begins_behind_its_snapshot() -> None:
    history = RecentEvents(first=42, last=41)
    assert history.find(AskEvents(first=42, last=50)).complete is True
    assert history.find(AskEvents(first=41, last=50)).complete is False
