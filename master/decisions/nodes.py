"""Commands about nodes (rename, drain, forget): the events or refusals that they lead to. Also
drains Macs whose driver keeps memory.

Pure. A drained node serves its instances until they have no open requests or the deadline has
passed; then their models are placed on other nodes on demand. Only a stopped node can be forgotten;
its instances are removed. If the driver of a Mac keeps the wired memory of a dead runner, the Mac
is drained, because a crash loop would make it worse. The Mac stays drained until a person runs
`undrain` or the memory is free again.
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
"""A Mac without a runner wires less memory than this (wired memory can't be paged out)."""
LETS_GO_S = 10.0
"""Seconds that a driver needs, at most, to free the memory of an ended process. A runner that keeps
failing is tried again after 15 s at the earliest."""


def decide_node(
    command: NodeCommand, state: ClusterState, observed: Observations, now: float
) -> tuple[EventBody, ...] | Refusal:
    """Return the events that a command leads to, in order, none if nothing changes; or a
    refusal."""
    node = command.node
    seat = state.nodes.get(node)
    match command:
        case ForgetNode(forgotten=False):
            return (NodeRemembered(node=node),) if node in state.forgotten else ()
        case ForgetNode():
            return _forget(node, state, observed, now)
        case _ if seat is None:
            return _unknown(node, state)
        case RenameNode(name=name):
            taken = [s.node for s in state.nodes.values() if s.name == name and s.node != node]
            if taken:
                text = f"the name {name!r} is taken by {taken[0]}; choose another"
                return Refusal(reason="conflict", message=text, field="name")
            return () if seat.name == name else (NodeRenamed(node=node, name=name),)
        case DrainNode(draining=draining):
            wired_bytes = seat.wired_bytes if seat.draining else 0
            if seat.draining == draining and not wired_bytes:
                return ()
            why = f"{seat.name} is drained"
            bodies = [
                InstanceDraining(instance=instance.instance, deadline_s=command.drain_s, why=why)
                for instance in _instances_on(node, state)
                if draining and instance.status in ("placed", "ready")
            ]
            wired_left = 0 if draining else wired_bytes
            return (NodeDrained(node=node, draining=draining, wired_bytes=wired_left), *bodies)
        case _:
            assert_never(command)


@dataclass(slots=True)
class BareNodes:
    """Since when each node has had no part of any model, in seconds on the leader's clock."""

    since: dict[NodeId, float] = field(default_factory=dict[NodeId, float])

    def follow_wired(
        self, state: ClusterState, observed: Observations, now: float
    ) -> list[NodeDrained]:
        """Return the nodes to drain because much memory stays wired without a runner, and those
        to undrain because it is free. A node that a person undrained is left alone until its
        memory is free."""
        busy = {shard.node for instance in state.instances.values() for shard in _there(instance)}
        busy |= {
            node
            for (node, _), (reading, at) in observed.runners.items()
            if reading.instance is not None and now - at <= RUNNER_READING_S
        }
        bare = [node for node in state.nodes if node not in busy]
        self.since = {NodeId(node): self.since.get(NodeId(node), now) for node in bare}
        drained: list[NodeDrained] = []
        for node, reading in observed.living_nodes(now).items():
            seat, wired_bytes = state.nodes.get(node), reading.wired_bytes
            if seat is None or wired_bytes is None:
                continue
            if wired_bytes <= WIRED_BYTES:
                if seat.wired_bytes:
                    drained.append(NodeDrained(node=node, draining=False))
            elif not seat.draining and not seat.wired_bytes and self._stays(node, observed):
                drained.append(NodeDrained(node=node, draining=True, wired_bytes=wired_bytes))
        return drained

    def _stays(self, node: NodeId, observed: Observations) -> bool:
        """Return whether the node had no model for long enough before its last measurement. A
        driver needs that time to free memory."""
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
            message=f"{name} is still running; stop it first (`shoal down` there)",
            field="node",
        )
    why = f"{name} was forgotten"
    gone = [
        InstanceRemoved(instance=instance.instance, why=why)
        for instance in _instances_on(node, state)
    ]
    return (*gone, NodeForgotten(node=node))


def _instances_on(node: NodeId, state: ClusterState) -> list[Instance]:
    there = state.instances.values()
    return [lease for lease in there if any(shard.node == node for shard in lease.shards)]


def _unknown(node: NodeId, state: ClusterState) -> Refusal:
    names = ", ".join(f"{node.name} ({node.node})" for node in state.nodes.values()) or "none"
    return Refusal(
        reason="unknown_node",
        message=f"there is no node {node!r}; known nodes: {names}",
        field="node",
    )
