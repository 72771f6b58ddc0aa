"""Commands about nodes (rename, drain, forget) to events, or to a refusal; and nodes that drain
themselves.

Pure. A drained node keeps what it serves until that is empty or its time is up; then demand
places it elsewhere. Only a node that is gone is forgotten, and what it held goes with it.
A Mac whose driver keeps a dead runner's memory wired is drained, so that no crash loop makes it
worse, until a person says `undrain` or the memory is free again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from bus.wire.instances import Instance, Shard
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
from master.decisions.observations import RUNNER_READING_S, Observations

NodeCommand = RenameNode | DrainNode | ForgetNode
WIRED_BYTES = 5 << 30
"""More than this is wired by no Mac at rest."""
LETS_GO_S = 10.0
"""A driver frees what a process had within seconds of its end; a runner that keeps failing is
tried again after 15 s at the earliest."""


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
            wired_bytes = known.wired_bytes if known.draining else 0
            if known.draining == draining and not wired_bytes:
                return ()
            why = f"{known.name} is drained"
            bodies = [
                InstanceDraining(instance=one.instance, deadline_s=command.drain_s, why=why)
                for one in _held(node, state)
                if draining and one.status in ("placed", "ready")
            ]
            kept = 0 if draining else wired_bytes
            return (NodeDrained(node=node, draining=draining, wired_bytes=kept), *bodies)
        case _:
            assert_never(command)


@dataclass(slots=True)
class BareNodes:
    """Since when nothing of a model was on each node, by the holder's clock."""

    since: dict[NodeId, float] = field(default_factory=dict[NodeId, float])

    def follow_wired(
        self, state: ClusterState, observed: Observations, now: float
    ) -> list[NodeDrained]:
        """Return which nodes are drained now because much memory stays wired there without a
        runner, and which are no longer because it is free. What a person let have work again is
        left alone until then."""
        busy = {shard.node for one in state.instances.values() for shard in _there(one)}
        busy |= {
            node
            for (node, _), (reading, at) in observed.runners.items()
            if reading.instance is not None and now - at <= RUNNER_READING_S
        }
        bare = [node for node in state.nodes if node not in busy]
        self.since = {NodeId(node): self.since.get(NodeId(node), now) for node in bare}
        found: list[NodeDrained] = []
        for node, reading in observed.living_nodes(now).items():
            seat, wired_bytes = state.nodes.get(node), reading.wired_bytes
            if seat is None or wired_bytes is None:
                continue
            if wired_bytes <= WIRED_BYTES:
                if seat.wired_bytes:
                    found.append(NodeDrained(node=node, draining=False))
            elif not seat.draining and not seat.wired_bytes and self._stays(node, observed):
                found.append(NodeDrained(node=node, draining=True, wired_bytes=wired_bytes))
        return found

    def _stays(self, node: NodeId, observed: Observations) -> bool:
        """Return whether the node was bare for so long when it was last measured that a driver has
        had its time to let go."""
        since = self.since.get(node)
        return since is not None and observed.measured_at(node) - since >= LETS_GO_S


def _there(instance: Instance) -> Sequence[Shard]:
    return () if instance.status == "failed" else instance.shards


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
