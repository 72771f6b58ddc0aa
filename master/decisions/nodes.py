"""Commands about nodes (rename, drain, forget) to events, or to a refusal.

Pure. A drained node keeps what it serves until that is empty or its time is up; then demand
places it elsewhere. Only a node that is gone is forgotten, and what it held goes with it.
"""

from __future__ import annotations

from typing import assert_never

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from bus.wire.instances import Instance
from bus.wire.messages.commands import DrainNode, ForgetNode, RenameNode
from bus.wire.messages.events import (
    EventBody,
    InstanceDraining,
    InstanceRemoved,
    NodeDrained,
    NodeForgotten,
    NodeRemembered,
    NodeRenamed,
)
from master.decisions.observations import Observations

NodeCommand = RenameNode | DrainNode | ForgetNode


def decide_node(
    command: NodeCommand, state: ClusterState, observed: Observations, now: float
) -> tuple[EventBody, ...] | Refusal:
    """Return the events of a command, in order, none where it is so already; or a refusal."""
    node = command.node
    known = state.nodes.get(node)
    match command:
        case ForgetNode(forgotten=False):
            return (NodeRemembered(node=node),) if node in state.forgotten else ()
        case ForgetNode():
            return _forget(node, state, observed, now)
        case _ if known is None:
            return _unknown(node, state)
        case RenameNode(name=name):
            taken = [s.node for s in state.nodes.values() if s.name == name and s.node != node]
            if taken:
                text = f"{taken[0]} is called {name!r} already"
                return Refusal(reason="conflict", message=text, field="name")
            return () if known.name == name else (NodeRenamed(node=node, name=name),)
        case DrainNode(draining=draining):
            if known.draining == draining:
                return ()
            why = f"{known.name} is drained"
            bodies = [
                InstanceDraining(instance=one.instance, deadline_s=command.drain_s, why=why)
                for one in _held(node, state)
                if draining and one.status in ("placed", "ready")
            ]
            return (NodeDrained(node=node, draining=draining), *bodies)
        case _:
            assert_never(command)


def _forget(
    node: NodeId, state: ClusterState, observed: Observations, now: float
) -> tuple[EventBody, ...] | Refusal:
    if node in state.forgotten:
        return ()
    if node not in state.nodes:
        return _unknown(node, state)
    name = state.nodes[node].name
    if node == state.holder or node in observed.living_nodes(now):
        return Refusal(
            reason="conflict",
            message=f"{name} is alive; take it down first (`shoal down` there)",
            field="node",
        )
    why = f"{name} was forgotten"
    gone = [InstanceRemoved(instance=one.instance, why=why) for one in _held(node, state)]
    return (*gone, NodeForgotten(node=node))


def _held(node: NodeId, state: ClusterState) -> list[Instance]:
    there = state.instances.values()
    return [one for one in there if any(shard.node == node for shard in one.shards)]


def _unknown(node: NodeId, state: ClusterState) -> Refusal:
    known = ", ".join(f"{one.name} ({one.node})" for one in state.nodes.values()) or "none"
    return Refusal(
        reason="unknown_node",
        message=f"there is no node {node!r}; known: {known}",
        field="node",
    )
