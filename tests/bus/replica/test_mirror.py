"""Mirrors under loss, repetition, reordering and change of term, against the holder's own state."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.replica.mirror import Mirror
from bus.replica.state import ClusterState, apply, digest, is_known
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.control import AskEvents, AskSnapshot, EventsFound, Snapshot, TermHeartbeat
from bus.wire.messages.events import (
    Event,
    EventBody,
    FactId,
    GenerationOpened,
    InstanceDraining,
    InstancePlaced,
    InstanceRemoved,
    KeepAliveSet,
    NodeJoined,
    RunnerEnded,
    RunnerReady,
    TermOpened,
)

NODE = NodeId("n1")


def placed(name: str, *, ranks: int = 1) -> InstancePlaced:
    shards = tuple(
        Shard(rank=r, node=NODE, first_layer=r, last_layer=r + 1, bytes_reserved=1)
        for r in range(ranks)
    )
    instance = Instance(
        instance=InstanceId(name),
        model=ModelId("m"),
        shards=shards,
        context_tokens=128,
        keep_alive_s=300,
    )
    return InstancePlaced(instance=instance)


def ready(name: str, generation: int = 1, rank: int = 0) -> RunnerReady:
    return RunnerReady(
        instance=InstanceId(name),
        generation=generation,
        rank=rank,
        node=NODE,
        process=f"runner:0{rank}",
        pid=1,
        addresses=("ipc:///x",),
    )


def ended(name: str, generation: int = 1) -> RunnerEnded:
    return RunnerEnded(instance=InstanceId(name), generation=generation, rank=0, node=NODE)


class Holder:
    """What a holder does for its mirrors: gives the index, keeps the log, answers."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.log: list[Event] = []
        self.counter = 1

    def say(self, body: EventBody, fact: FactId | None = None) -> Event:
        event = Event(term=self.counter, index=self.state.index + 1, at_s=0.0, body=body, fact=fact)
        self.state = apply(self.state, event)
        self.log.append(event)
        return event

    def beat(self) -> TermHeartbeat:
        return TermHeartbeat(
            holder=NODE,
            counter=self.counter,
            index=self.state.index,
            digest=digest(self.state),
            addresses=(),
        )

    def answer(self, ask: AskSnapshot | AskEvents) -> Snapshot | EventsFound:
        if isinstance(ask, AskSnapshot):
            return Snapshot(
                term=self.counter, index=self.state.index, state=self.state.model_dump()
            )
        found = tuple(e for e in self.log if ask.first <= e.index <= ask.last)
        return EventsFound(events=found, complete=len(found) == ask.last - ask.first + 1)


def heard(mirror: Mirror, holder: Holder, message: object, now: float) -> None:
    """Deliver one message and, at once, the answers to whatever the mirror asks."""
    ask = None
    if isinstance(message, Event):
        ask = mirror.heard_event(message, now)
    elif isinstance(message, TermHeartbeat):
        ask = mirror.heard_heartbeat(message, now)
    while ask is not None:
        answer = holder.answer(ask)
        if isinstance(answer, Snapshot):
            ask = mirror.heard_snapshot(answer, now)
        else:
            ask = mirror.heard_found(answer, now)


BODIES = st.sampled_from(["place", "ready", "ended", "open", "drain", "remove", "keep", "join"])


def body_for(kind: str, name: str, state: ClusterState) -> EventBody:
    instance = state.instances.get(name)
    generation = instance.generation if instance else 1
    made: dict[str, EventBody] = {
        "place": placed(name),
        "ready": ready(name, generation),
        "ended": ended(name, generation),
        "open": GenerationOpened(instance=InstanceId(name), generation=generation + 1, why="again"),
        "drain": InstanceDraining(instance=InstanceId(name), deadline_s=1, why="asked"),
        "remove": InstanceRemoved(instance=InstanceId(name), why="gone"),
        "keep": KeepAliveSet(instance=InstanceId(name), keep_alive_s=9),
        "join": NodeJoined(node=NodeId(name), name=name),
    }
    return made[kind]


@settings(max_examples=150)
@given(
    st.lists(st.tuples(BODIES, st.sampled_from("abc")), max_size=40),
    st.integers(0, 2**32),
    st.floats(0, 0.6),
)
def test_every_mirror_ends_with_the_holders_state(
    story: list[tuple[str, str]], seed: int, loss: float
) -> None:
    chance, holder, mirror = random.Random(seed), Holder(), Mirror()
    air: list[object] = []
    now = 0.0
    for kind, name in story:
        now += 0.1
        if chance.random() < 0.05:
            holder.counter += 1
            air.append(holder.say(TermOpened(holder=NODE, counter=holder.counter)))
        event = holder.say(body_for(kind, name, holder.state))
        air += [event] * chance.choice([1, 1, 2])
        air.append(holder.beat())
        chance.shuffle(air)
        for _ in range(chance.randint(0, 3)):
            if air:
                message = air.pop()
                if chance.random() >= loss:
                    heard(mirror, holder, message, now)
    for step in range(4):
        heard(mirror, holder, holder.beat(), now + 10 + step)
    assert mirror.state == holder.state
    assert mirror.digest() == digest(holder.state)
    assert not mirror.stash


def test_an_event_of_an_older_term_changes_nothing() -> None:
    holder, mirror = Holder(), Mirror()
    heard(mirror, holder, holder.beat(), 0.0)
    old = holder.say(placed("a"))
    holder.counter = 2
    heard(mirror, holder, holder.say(TermOpened(holder=NODE, counter=2)), 1.0)
    heard(mirror, holder, holder.beat(), 2.0)
    before = mirror.state
    heard(mirror, holder, old, 3.0)
    assert mirror.state == before


def test_a_lost_tail_is_noticed_at_the_next_heartbeat() -> None:
    holder, mirror = Holder(), Mirror()
    heard(mirror, holder, holder.beat(), 0.0)
    holder.say(placed("a"))
    assert mirror.heard_heartbeat(holder.beat(), 1.0) == AskEvents(first=1, last=1)


def test_a_differing_digest_takes_a_snapshot() -> None:
    holder, mirror = Holder(), Mirror()
    heard(mirror, holder, holder.beat(), 0.0)
    heard(mirror, holder, holder.say(placed("a")), 1.0)
    mirror.state = mirror.state.model_copy(update={"instances": {}})
    mirror.last_digest = (-1, 0)
    assert mirror.heard_heartbeat(holder.beat(), 2.0) == AskSnapshot()


def test_a_question_without_an_answer_is_asked_again() -> None:
    holder, mirror = Holder(), Mirror()
    assert mirror.heard_heartbeat(holder.beat(), 0.0) == AskSnapshot()
    assert mirror.heard_heartbeat(holder.beat(), 0.1) is None
    assert mirror.due(0.2) is None
    assert mirror.due(0.6) == AskSnapshot()


def test_an_instance_is_ready_when_all_its_ranks_are_and_placed_again_when_one_is_lost() -> None:
    holder = Holder()
    holder.say(placed("a", ranks=2))
    holder.say(ready("a", rank=0))
    assert holder.state.instances["a"].status == "placed"
    holder.say(ready("a", rank=1))
    assert holder.state.instances["a"].status == "ready"
    assert holder.state.instances["a"].lead is not None
    holder.say(ended("a"))
    assert holder.state.instances["a"].status == "placed"
    assert len(holder.state.instances["a"].failures) == 1


def test_news_of_an_older_generation_changes_nothing() -> None:
    holder = Holder()
    holder.say(placed("a"))
    holder.say(GenerationOpened(instance=InstanceId("a"), generation=2, why="crash"))
    before = holder.state.instances["a"]
    holder.say(ready("a", generation=1))
    holder.say(ended("a", generation=1))
    assert holder.state.instances["a"] == before


def test_a_fact_told_twice_counts_once() -> None:
    holder = Holder()
    holder.say(placed("a"))
    fact = FactId(node=NODE, process="worker", boot=Boot("b"), seq=1)
    holder.say(ended("a"), fact)
    holder.say(ended("a"), fact)
    assert len(holder.state.instances["a"].failures) == 1
    assert is_known(holder.state, fact)
    assert not is_known(holder.state, fact.model_copy(update={"seq": 2}))


def begun(events: list[EventBody]) -> tuple[Holder, Mirror]:
    holder, mirror = Holder(), Mirror()
    holder.say(TermOpened(holder=NODE, counter=1))
    for body in events:
        holder.say(body)
    heard(mirror, holder, holder.beat(), 0.0)
    return holder, mirror


def test_a_new_holder_is_asked_whether_it_has_our_last_event_before_its_own_are_applied() -> None:
    _, mirror = begun([placed("a")])
    other = NodeId("n2")
    beat = TermHeartbeat(holder=other, counter=2, index=3, digest=1, addresses=())
    assert mirror.heard_heartbeat(beat, 1.0) == AskEvents(
        first=3, last=3, after_term=1, after_holder=NODE
    )
    opened = Event(
        term=2, index=3, at_s=0.0, body=TermOpened(holder=other, counter=2), holder=other
    )
    assert mirror.heard_event(opened, 1.1) is None
    assert mirror.state.index == 2, "not yet"
    found = EventsFound(events=(opened,), complete=True, term=2, holder=other)
    assert mirror.heard_found(found, 1.2) is None
    assert (mirror.state.index, mirror.state.holder) == (3, other)


def test_a_tail_that_the_new_holder_does_not_have_is_replaced() -> None:
    _, mirror = begun([placed("a"), placed("b")])
    other = NodeId("n2")
    beat = TermHeartbeat(holder=other, counter=2, index=9, digest=1, addresses=())
    mirror.heard_heartbeat(beat, 1.0)
    missing = EventsFound(events=(), complete=False, term=2, holder=other)
    assert mirror.heard_found(missing, 1.1) == AskSnapshot()
    theirs = ClusterState(term=2, holder=other, index=9)
    mirror.heard_snapshot(Snapshot(term=2, index=9, state=theirs.model_dump(), holder=other), 1.2)
    assert mirror.state == theirs


def test_answers_of_a_holder_that_was_deposed_meanwhile_change_nothing() -> None:
    holder, mirror = begun([placed("a")])
    late = holder.answer(AskSnapshot())
    beat = TermHeartbeat(holder=NodeId("n2"), counter=2, index=1, digest=1, addresses=())
    mirror.heard_heartbeat(beat, 1.0)
    before = mirror.state
    assert isinstance(late, Snapshot)
    mirror.heard_snapshot(late, 1.1)
    old = holder.say(placed("b"))
    mirror.heard_found(EventsFound(events=(old,), complete=True, term=1, holder=NODE), 1.2)
    mirror.heard_event(old, 1.3)
    assert mirror.state == before


def test_a_holder_by_votes_outranks_one_that_claimed_alone_until_it_is_long_silent() -> None:
    holder, mirror = begun([])
    voters = (NodeId("v1"), NodeId("v2"), NodeId("v3"))
    voted = TermHeartbeat(
        holder=voters[0], counter=1, index=1, digest=1, addresses=(), voters=voters
    )
    holder.counter = 50
    heard(mirror, holder, holder.beat(), 1.0)
    assert mirror.counter == 50
    mirror.heard_heartbeat(voted, 2.0)
    assert (mirror.counter, mirror.holder) == (1, voters[0])
    mirror.heard_heartbeat(holder.beat(), 3.0)
    assert mirror.holder == voters[0]
    mirror.heard_heartbeat(holder.beat(), 12.0)
    assert mirror.holder == NODE


def test_a_higher_term_that_nobody_else_heard_of_is_forgotten_but_never_one_by_votes() -> None:
    """Its holder may have died, and its disk with it, before it reached anybody but us."""
    for voters in ((), (NODE, NodeId("n2"), NodeId("n3"))):
        mirror = Mirror()
        beat = TermHeartbeat(holder=NODE, counter=3, index=1, digest=1, addresses=(), voters=voters)
        lower = beat.model_copy(update={"holder": NodeId("n2"), "counter": 2})
        mirror.heard_heartbeat(beat, 1.0)
        for now in (2.0, 10.9):
            mirror.heard_heartbeat(lower, now)
            assert (mirror.holder, mirror.counter) == (NODE, 3)
        asked = mirror.heard_heartbeat(lower, 11.0)
        if voters:
            assert (mirror.holder, mirror.counter) == (NODE, 3)
        else:
            assert (mirror.holder, mirror.counter) == ("n2", 2)
            assert isinstance(asked, AskSnapshot)


def test_a_claim_that_fewer_follow_is_left_aside_while_the_holder_lives() -> None:
    mirror = Mirror()
    held = TermHeartbeat(holder=NODE, counter=3, index=1, digest=1, addresses=(), followers=2)
    lone = held.model_copy(update={"holder": NodeId("n2"), "counter": 9, "followers": 1})
    mirror.heard_heartbeat(held, 1.0)
    mirror.heard_heartbeat(lone, 2.0)
    assert (mirror.holder, mirror.counter) == (NODE, 3)
    mirror.heard_heartbeat(lone.model_copy(update={"followers": 2}), 2.1)
    assert (mirror.holder, mirror.counter) == ("n2", 9), "as many: the higher"
    mirror.heard_heartbeat(held.model_copy(update={"counter": 10, "followers": 0}), 3.7)
    assert (mirror.holder, mirror.counter) == (NODE, 10), "the other has fallen silent"


def test_who_is_far_behind_takes_a_snapshot_instead_of_replaying() -> None:
    _, mirror = begun([])
    beat = TermHeartbeat(holder=NODE, counter=1, index=50_000, digest=1, addresses=())
    assert mirror.heard_heartbeat(beat, 1.0) == AskSnapshot()
