"""What a simulated holder decides: by the real rules where machines have workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bus.wire.cards import ModelCard, NodeCard
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.commands import (
    AddApiKey,
    Command,
    ForgetNode,
    RemoveApiKey,
    RotateApiKey,
)
from bus.wire.messages.events import InstancePlaced, NodeForgotten, NodeRemembered
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.messages.readings import CardReading, NodeReading
from master.decisions.api_keys import decide_api_key
from master.decisions.decide import Decided, Decision, Known, Scene
from master.placement.capacity import MEMORY_SHARE

if TYPE_CHECKING:
    from tests.sim.machine import Machine

GB = 10**9
MEMORY_BYTES = 16 * GB
MODEL = ModelId("m")
CARD = ModelCard(
    model=MODEL, path="/m", family="qwen3", layers=2, weights_bytes=2 * GB, size_bytes=2 * GB,
    kv_bytes_per_token=1_000, context_tokens=4_096, vocabulary=100,
)  # fmt: skip


def decided(command: Command, scene: Scene, fresh: InstanceId, holder: Machine) -> Decision:
    """Without workers: every command about a copy places one on the asker."""
    known = scene.state.commands.get(command.command_id)
    if known is not None:
        return Known(known[0])
    if isinstance(command, ForgetNode):
        return changed_voters(command, holder)
    if isinstance(command, AddApiKey | RotateApiKey | RemoveApiKey):
        body = decide_api_key(command, scene.state)
        return body if isinstance(body, Refusal) else Decided((body,), None)
    asker = holder.cluster.asked_by[command.command_id]
    instance = Instance(
        instance=fresh, model=MODEL, context_tokens=8,
        shards=(Shard(rank=0, node=asker, first_layer=0, last_layer=1, bytes_reserved=1),),
        keep_alive_s=-1.0,
    )  # fmt: skip
    return Decided((InstancePlaced(instance=instance),), instance.instance)


def changed_voters(command: ForgetNode, holder: Machine) -> Decision:
    """Never ourselves; that a majority has the whole log is seen to elsewhere."""
    if command.node == holder.node:
        return Refusal(reason="conflict", message="it is alive")
    node = command.node
    body = NodeForgotten(node=node) if command.forgotten else NodeRemembered(node=node)
    return Decided((body,), None)


def overbooked(holder: Machine) -> str | None:
    """The node on which more is reserved than there is, if any."""
    reserved: dict[str, int] = {}
    for instance in holder.candidate.state.instances.values():
        for shard in instance.shards:
            reserved[shard.node] = reserved.get(shard.node, 0) + shard.bytes_reserved
    return next((n for n, b in reserved.items() if b > MEMORY_SHARE * MEMORY_BYTES), None)


def peers_reading(node: NodeId, heard_at: Mapping[NodeId, float], now: float) -> PeersReading:
    """What the switchboard of a node says of the others, each heard at its instant."""
    return PeersReading(
        node=node,
        peers=tuple(
            PeerReading(node=peer, name=str(peer), status="linked", silent_s=now - at)
            for peer, at in heard_at.items()
            if peer != node
        ),
    )


def read(machine: Machine, reader: Machine) -> None:
    """The card and the reading of a machine that works reach another."""
    if machine.worker is None or not machine.up or machine.paused is not None:
        return
    if (machine.name, reader.name) in machine.world.cut:
        return
    card = NodeCard(
        node=machine.node, name=machine.name, platform="linux", cores=2,
        memory_bytes=MEMORY_BYTES, backends=("mlx-cpu",), mlx_version="", shoal_version="",
        slots=len(machine.worker.processes), models=(CARD,), announced_at_s=1.0,
    )  # fmt: skip
    reading = NodeReading(
        node=machine.node, memory_total_bytes=MEMORY_BYTES,
        memory_available_bytes=machine.worker.free_bytes, cpu_ratio=0.0, load_1m=0.0,
        disk_total_bytes=1, disk_free_bytes=1, measured_at_s=0.0,
    )  # fmt: skip
    reader.holder.view.hear(CardReading(card=card), reader.now)
    reader.holder.view.hear(reading, reader.now)
