"""What a worker knows beside state and slots, and whether a shard can be held here by it.

Pure. Nothing is fetched that would not fit into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.errors import Refusal
from bus.ids import ModelId, NodeId
from bus.instances import Instance, Shard
from worker.actions import FetchModel
from worker.slots import Slot, SlotTable

TOLERANCE = 1.10
ROOM_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Desk:
    """What the worker knows beside state and slots.

    `free_bytes` is measured now; None when it cannot be (then nothing is refused for it).
    `paths` are the models on this disk, `announced` those on other nodes' (complete once
    `has_heard`). `fetches` are under way, or have failed for the reason given. `settled`: the
    inventory is complete.
    """

    node: NodeId
    settled: bool
    free_bytes: int | None
    paths: frozenset[str]
    load_deadline_s: float
    now: float
    announced: Mapping[NodeId, frozenset[ModelId]] = field(
        default_factory=dict[NodeId, frozenset[ModelId]]
    )
    fetches: Mapping[ModelId, Refusal | None] = field(default_factory=dict[ModelId, Refusal | None])
    has_heard: bool = True


def admitted(
    instance: Instance, shard: Shard, table: SlotTable, desk: Desk
) -> Refusal | list[FetchModel] | None:
    """None: start it now. A list: wait, perhaps fetching. A refusal: it cannot be held here.

    Memory is judged before a fetch begins and when the rank could start; a dip between does not
    count.
    """
    weights = supplied(instance, desk)
    if isinstance(weights, Refusal) or weights == []:
        return weights
    return crowded(instance, shard, table, desk) or weights


def crowded(instance: Instance, shard: Shard, table: SlotTable, desk: Desk) -> Refusal | None:
    """Why the memory that is free does not do, if so."""
    if desk.free_bytes is None:
        return None
    coming = sum(_still_coming(slot) for slot in table.slots.values())
    free = desk.free_bytes - coming
    if shard.bytes_reserved <= free * TOLERANCE:
        return None
    return Refusal(
        reason="insufficient_memory",
        message=(
            f"{instance.model} was placed here with {shard.bytes_reserved / 1e9:.2f} GB, but "
            f"{max(free, 0) / 1e9:.2f} GB are free now (10 % tolerated)"
        ),
        retry_after_s=ROOM_RETRY_S,
        facts={
            "reserved_bytes": shard.bytes_reserved,
            "free_bytes": desk.free_bytes,
            "loading_bytes": coming,
        },
    )


def supplied(instance: Instance, desk: Desk) -> Refusal | list[FetchModel] | None:
    """None: the weights are here, and on the nodes of the other ranks. A list: they are
    waited for, perhaps by fetching them. A refusal: they will not come."""
    model = instance.model
    if instance.test is not None:
        return None
    if model not in desk.paths:
        if model in desk.fetches:
            return desk.fetches[model] or []
        if any(model in models for models in desk.announced.values()):
            return [FetchModel(model)]
        text = f"{model} is no longer on this node's disk or any other's"
        return Refusal(reason="unknown_model", message=text) if desk.has_heard else []
    others = {shard.node for shard in instance.shards} - {desk.node}
    lacking = [n for n in others if n in desk.announced and model not in desk.announced[n]]
    return [] if lacking else None


def vanished(instance: Instance, desk: Desk) -> Refusal | None:
    """Why it cannot be loaded from this disk any more, if so."""
    if instance.model in desk.paths or instance.test is not None:
        return None
    text = f"{instance.model} is no longer on this node's disk"
    return Refusal(reason="unknown_model", message=text)


def _still_coming(slot: Slot) -> int:
    """Weights of a loading runner that are not in memory yet."""
    if slot.life != "loading" or slot.hello is None:
        return 0
    return max(0, slot.hello.total_bytes - slot.hello.done_bytes)
