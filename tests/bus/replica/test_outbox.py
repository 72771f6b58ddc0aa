from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.replica.outbox import KEPT, Outbox
from bus.replica.state import ClusterState, apply, is_known
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.control import TellFact
from bus.wire.messages.events import Event, NodeJoined

NODE = NodeId("n1")


def outbox() -> Outbox:
    return Outbox(NODE, "worker", Boot("b"))


def fact(number: int) -> NodeJoined:
    return NodeJoined(node=NODE, name=str(number))


def take(state: ClusterState, told: TellFact) -> ClusterState:
    """As a holder does: in order, once."""
    boot, last = state.facts.get("n1/worker", ("", 0))
    expected = last + 1 if boot == told.fact_id.boot else 1
    if is_known(state, told.fact_id) or told.fact_id.seq != expected:
        return state
    event = Event(term=1, index=state.index + 1, at_s=0.0, body=told.fact, fact=told.fact_id)
    return apply(state, event)


def test_a_fact_is_told_again_every_second_until_it_is_seen() -> None:
    box = outbox()
    box.add(fact(1))
    assert len(box.due(0.0)) == 1
    assert box.due(0.9) == []
    (again,) = box.due(1.0)
    box.seen(take(ClusterState(), again))
    assert box.due(99.0) == [] and not box.waiting


def test_what_a_log_takes_back_is_told_again_in_its_order() -> None:
    box, states = outbox(), [ClusterState()]
    for number in range(1, 5):
        box.add(fact(number))
        for told in box.due(float(number)):
            states.append(take(states[-1], told))
        box.seen(states[-1])
    assert not box.waiting
    box.seen(states[2])
    assert [told.fact_id.seq for told in box.due(9.0)] == [3, 4]
    box.seen(ClusterState())
    assert [told.fact_id.seq for told in box.due(10.0)] == [1, 2, 3, 4]


def test_beyond_what_is_kept_the_rest_begins_a_boot_of_its_own() -> None:
    box, state = outbox(), ClusterState()
    for number in range(1, KEPT + 11):
        box.add(fact(number))
        for told in box.due(float(number)):
            state = take(state, told)
        box.seen(state)
    box.seen(ClusterState())
    due = box.due(10_000.0)
    assert [told.fact_id.seq for told in due] == list(range(1, KEPT + 1))
    assert {told.fact_id.boot for told in due} == {"b+1"}
    assert due[-1].fact == fact(KEPT + 10)
    box.add(fact(0))
    other = ClusterState()
    for told in due:
        other = take(other, told)
    box.seen(other)
    assert [told.fact_id.seq for told in box.due(20_000.0)] == [KEPT + 1]


@given(st.lists(st.sampled_from(["add", "tell", "lose", "see", "fork", "swap"]), max_size=60))
def test_whatever_logs_come_and_go_the_last_one_gets_every_fact(story: list[str]) -> None:
    box, logs, added = outbox(), [ClusterState(), ClusterState()], 0
    now, current = 0.0, 0
    for step in [*story, *["tell", "see"] * 3]:
        now += 2.0
        match step:
            case "add":
                added += 1
                box.add(fact(added))
            case "tell":
                for told in box.due(now):
                    logs[current] = take(logs[current], told)
            case "lose":
                box.due(now)
            case "see":
                box.seen(logs[current])
            case "fork":
                logs[1 - current] = logs[current]
            case _:
                current = 1 - current
                box.seen(logs[current])
    assert not box.waiting
    if added:
        assert logs[current].facts["n1/worker"] == (box.boot, box.seq)
        assert logs[current].nodes[NODE].name == str(added)
