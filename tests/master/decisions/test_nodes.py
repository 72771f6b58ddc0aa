"""Commands about nodes, and what the state makes of them."""

from __future__ import annotations

import pytest

from bus.replica.state import ClusterState, apply
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.commands import DrainNode, ForgetNode, RenameNode
from bus.wire.messages.events import (
    Event,
    EventBody,
    InstanceDraining,
    InstancePlaced,
    InstanceRemoved,
    NodeForgotten,
    NodeJoined,
    TermOpened,
)
from bus.wire.messages.readings import NodeReading
from master.decisions.decide import Policy
from master.decisions.holder import Holder
from master.decisions.nodes import WIRED_BYTES, BareNodes, decide_node
from master.decisions.observations import Observations
from master.log.sequencer import LogDraft

A, B = NodeId("n-a"), NodeId("n-b")
ID = CommandId("c")


def grown(state: ClusterState, *bodies: EventBody) -> ClusterState:
    for body in bodies:
        state = apply(state, Event(term=1, index=state.index + 1, at_s=0.0, body=body))
    return state


def placed(name: str, *nodes: NodeId) -> InstancePlaced:
    shards = tuple(
        Shard(rank=rank, node=node, first_layer=rank, last_layer=rank + 1, bytes_reserved=1)
        for rank, node in enumerate(nodes)
    )
    instance = Instance(
        instance=InstanceId(name), model=ModelId("m"), shards=shards, context_tokens=8,
        keep_alive_s=1.0,
    )  # fmt: skip
    return InstancePlaced(instance=instance)


@pytest.fixture
def state() -> ClusterState:
    return grown(
        ClusterState(),
        TermOpened(holder=A, counter=1),
        NodeJoined(node=A, name="a"),
        NodeJoined(node=B, name="b"),
        placed("one", A),
        placed("both", A, B),
    )


def reading(node: NodeId) -> NodeReading:
    return NodeReading(
        node=node, memory_total_bytes=1, memory_available_bytes=1, cpu_ratio=0, load_1m=0,
        disk_total_bytes=1, disk_free_bytes=1, measured_at_s=0,
    )  # fmt: skip


def test_a_drained_node_lets_go_of_what_it_holds_and_says_nothing_twice(
    state: ClusterState,
) -> None:
    bodies = decide_node(DrainNode(command_id=ID, node=B, drain_s=5.0), state, Observations(), 0.0)
    assert isinstance(bodies, tuple)
    leaving = [one for one in bodies if isinstance(one, InstanceDraining)]
    assert [(one.instance, one.deadline_s) for one in leaving] == [("both", 5.0)]
    after = grown(state, *bodies)
    assert after.nodes[B].draining
    assert decide_node(DrainNode(command_id=ID, node=B), after, Observations(), 0.0) == ()
    undo = decide_node(DrainNode(command_id=ID, node=B, draining=False), after, Observations(), 0.0)
    assert isinstance(undo, tuple)
    assert not grown(after, *undo).nodes[B].draining


def test_the_operators_name_outlives_the_nodes_own(state: ClusterState) -> None:
    bodies = decide_node(
        RenameNode(command_id=ID, node=B, name="studio"), state, Observations(), 0.0
    )
    assert isinstance(bodies, tuple)
    after = grown(state, *bodies, NodeJoined(node=B, name="b", addresses=("h",)))
    assert (after.nodes[B].name, after.nodes[B].addresses) == ("studio", ("h",))
    taken = decide_node(
        RenameNode(command_id=ID, node=A, name="studio"), after, Observations(), 0.0
    )
    assert isinstance(taken, Refusal)
    assert taken.reason == "conflict"


def test_only_a_node_that_is_gone_is_forgotten_and_what_it_held_goes_with_it(
    state: ClusterState,
) -> None:
    view = Observations()
    view.hear(reading(B), 0.0)
    alive = decide_node(ForgetNode(command_id=ID, node=B), state, view, 1.0)
    assert isinstance(alive, Refusal)
    assert "shoal down" in alive.message
    holder = decide_node(ForgetNode(command_id=ID, node=A), state, Observations(), 1.0)
    assert isinstance(holder, Refusal)
    bodies = decide_node(ForgetNode(command_id=ID, node=B), state, view, 60.0)
    assert bodies == (
        InstanceRemoved(instance=InstanceId("both"), why="b was forgotten"),
        NodeForgotten(node=B),
    )
    after = grown(state, *bodies)
    assert set(after.nodes) == {A}
    assert after.forgotten == (B,)
    back = decide_node(
        ForgetNode(command_id=ID, node=B, forgotten=False), after, Observations(), 61.0
    )
    assert isinstance(back, tuple)
    assert grown(after, *back).forgotten == ()


def test_an_unknown_node_is_refused_with_those_there_are(state: ClusterState) -> None:
    refusal = decide_node(DrainNode(command_id=ID, node=NodeId("x")), state, Observations(), 0.0)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "unknown_node"
    assert "b (n-b)" in refusal.message


WIRED = WIRED_BYTES + 1


def wired(at: float, node: NodeId = A, wired_bytes: int | None = WIRED) -> Observations:
    """What is known when a node has just told how much is wired there."""
    observed = Observations()
    observed.hear(reading(node).model_copy(update={"wired_bytes": wired_bytes}), at)
    return observed


@pytest.fixture
def empty(state: ClusterState) -> ClusterState:
    gone = ("one", "both")
    return grown(state, *(InstanceRemoved(instance=InstanceId(name), why="") for name in gone))


def seen(state: ClusterState, bare: BareNodes, observed: Observations, now: float) -> ClusterState:
    return grown(state, *bare.follow_wired(state, observed, now))


def test_a_node_that_keeps_memory_wired_without_a_model_takes_none_until_told_to(
    empty: ClusterState,
) -> None:
    bare = BareNodes()
    state = seen(empty, bare, wired(0.0), 0.0)
    assert not seen(state, bare, wired(9.9), 9.9).nodes[A].draining
    state = seen(state, bare, wired(10.0), 10.0)
    assert (state.nodes[A].draining, state.nodes[A].wired_bytes) == (True, WIRED)
    assert not state.nodes[B].draining
    # a person says that models are to be loaded in spite of it: it stays so
    told = decide_node(DrainNode(command_id=ID, node=A, draining=False), state, wired(11.0), 11.0)
    assert isinstance(told, tuple)
    state = grown(state, *told)
    assert not state.nodes[A].draining
    assert seen(state, bare, wired(500.0), 500.0) == state
    # a new holder knows that from the log
    assert seen(state, BareNodes(), wired(600.0), 600.0) == state
    # it is free again: from then on the next time counts
    state = seen(state, bare, wired(700.0, wired_bytes=WIRED_BYTES), 700.0)
    assert state.nodes[A].wired_bytes == 0
    assert seen(state, bare, wired(800.0), 800.0).nodes[A].draining


def test_memory_that_is_free_again_ends_what_was_drained_for_it_alone(empty: ClusterState) -> None:
    bare = BareNodes()
    seen(empty, bare, wired(0.0), 0.0)
    state = seen(empty, bare, wired(20.0), 20.0)
    assert state.nodes[A].draining
    assert not seen(state, bare, wired(21.0, wired_bytes=0), 21.0).nodes[A].draining
    by_hand = decide_node(DrainNode(command_id=ID, node=A), state, wired(21.0), 21.0)
    assert isinstance(by_hand, tuple)
    state = grown(state, *by_hand)
    assert state.nodes[A].draining
    assert seen(state, bare, wired(22.0, wired_bytes=0), 22.0).nodes[A].draining


def test_memory_is_not_missed_while_a_model_is_there_nor_measured_before_it_left(
    state: ClusterState, empty: ClusterState
) -> None:
    bare = BareNodes()
    for now in (0.0, 50.0, 100.0):
        assert seen(state, bare, wired(now), now) == state
    assert seen(empty, bare, wired(100.0), 101.0) == empty
    assert seen(empty, bare, wired(100.0), 112.0) == empty, "measured with the model"
    assert seen(empty, bare, wired(112.0), 112.0).nodes[A].draining


@pytest.mark.parametrize("wired_bytes", [None, 0, WIRED_BYTES])
def test_where_little_is_wired_or_nothing_is_told_nothing_happens(
    empty: ClusterState, wired_bytes: int | None
) -> None:
    bare = BareNodes()
    for now in (0.0, 50.0, 100.0):
        assert seen(empty, bare, wired(now, wired_bytes=wired_bytes), now) == empty


def test_a_holder_drains_such_a_node_of_itself_and_the_next_one_goes_by_the_log() -> None:
    state = grown(ClusterState(), TermOpened(holder=B, counter=1), NodeJoined(node=A, name="a"))

    def planned(state: ClusterState, times: range) -> ClusterState:
        """Have a new holder hear of the node each second, and plan."""
        holder = Holder(Policy(), lambda: InstanceId("i"))
        for at in times:
            holder.observe(reading(A).model_copy(update={"wired_bytes": WIRED}), float(at))
            draft = LogDraft(state, 1, B, 0.0)
            holder.planned(draft, float(at))
            state = draft.state
        return state

    assert not planned(state, range(10)).nodes[A].draining
    state = planned(state, range(12))
    assert (state.nodes[A].draining, state.nodes[A].wired_bytes) == (True, WIRED)
    spite = decide_node(DrainNode(command_id=ID, node=A, draining=False), state, wired(0.0), 0.0)
    assert isinstance(spite, tuple)
    assert not planned(grown(state, *spite), range(30)).nodes[A].draining
