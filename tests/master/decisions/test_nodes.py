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
from master.decisions.nodes import decide_node
from master.decisions.observations import Observations

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
