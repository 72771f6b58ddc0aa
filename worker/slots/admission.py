"""Decide whether this node can hold a shard. Besides the cluster's state and the slots, the
decision uses free memory, the models on disk and other nodes' cards.

Pure. Weights that would not fit into memory are not fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.wire.accelerators import Device, device_title
from bus.wire.cards import PartialModel
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from worker.models.layer_bytes import part_wanted
from worker.slots.actions import FetchModel
from worker.slots.table import LEAVING, Life, Slot, SlotTable
from worker.transfer.sources import NOTHING_ELSEWHERE, WeightsElsewhere

TOLERANCE = 1.10
ROOM_RETRY_S = 5.0
SPARE_ROOM_BYTES = 2_000_000_000
"""A spare runner, which takes some 70 MB, is started only if this much memory is free, in bytes."""


@dataclass(frozen=True, slots=True)
class SlotTiming:
    """Timeouts of the worker, in seconds.

    A runner says hello within `first_report_s` of its start (`inventory_s` of the worker's start).
    It is killed after `silent_s` of silence (`silent_loading_s` while it loads), and suspect after
    a third of that. A runner that is not loaded in time leaves by itself, or is killed `ask_s`
    later. A runner that must leave is first asked to leave. `ask_s` after its deadline it gets
    SIGTERM, and from `term_s` later on SIGKILL, repeatedly (a backup for supervisord's own SIGKILL
    after 5 s). A rank waits `seat_s` for the addresses (seats) of its group's other ranks; its own
    seat may be missing from the log for `stray_s` while it runs. A spare runner is started when no
    slot has changed for `spare_s`, but not within `spare_again_s` of its last failure. While a slot
    changes, supervisord is polled every `list_s`, otherwise every `list_steady_s`.
    """

    inventory_s: float = 3.0
    first_report_s: float = 120.0
    ask_s: float = 5.0
    term_s: float = 10.0
    repeat_kill_s: float = 2.0
    seat_s: float = 60.0
    stray_s: float = 5.0
    spare_s: float = 5.0
    spare_again_s: float = 60.0
    silent_s: float = 12.0
    silent_loading_s: float = 60.0
    repeat_s: float = 1.0
    retell_s: float = 5.0
    list_s: float = 0.5
    list_steady_s: float = 10.0

    def silence_s(self, life: Life) -> float | None:
        """Return how long a runner may be silent in this state of its slot before it is killed;
        None for states that have other deadlines."""
        match life:
            case "starting":
                return self.first_report_s
            case "loading":
                return self.silent_loading_s
            case "idle" | "ready" | "draining":
                return self.silent_s
            case "free" | "stopping" | "killed":
                return None

    def is_suspect(self, life: Life, silent_s: float) -> bool:
        """Return whether a runner has been silent for a third of the permitted time. Its stack
        traces are then recorded while the process still exists."""
        limit_s = self.silence_s(life)
        return limit_s is not None and silent_s >= limit_s / 3


USUAL = SlotTiming()


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """The facts that the worker knows besides the cluster's state and the slots.

    `free_bytes` is measured now; None if that is impossible (then no rank is refused for lack of
    memory). `paths` are the complete models on this disk, `parts` the partial ones, `elsewhere` the
    weights on other nodes. `settled`: the inventory is complete. `spare`: keep one runner started
    that belongs to no instance. `devices`: the GPUs, with their free memory. `on_devices`: the
    instances whose rank on this node is in the memory of GPUs.
    """

    node: NodeId
    settled: bool
    free_bytes: int | None
    paths: frozenset[str]
    load_deadline_s: float
    now: float
    parts: Mapping[ModelId, PartialModel] = field(default_factory=dict[ModelId, PartialModel])
    elsewhere: WeightsElsewhere = NOTHING_ELSEWHERE
    timing: SlotTiming = USUAL
    spare: bool = False
    devices: tuple[Device, ...] = ()
    on_devices: frozenset[InstanceId] = frozenset()

    def has(self, instance: Instance, shard: Shard) -> bool:
        """Return whether the weights that a rank needs are on this disk."""
        part = self.parts.get(instance.reads)
        return instance.reads in self.paths or _in_part(instance, shard, part)

    def other_lacks(self, instance: Instance, shard: Shard) -> bool:
        """Return whether the node of another rank is known to lack the weights of that rank."""
        card = self.elsewhere.cards.get(shard.node)
        if card is None or any(item.model == instance.reads for item in card.models):
            return False
        part = next((item for item in card.parts if item.model == instance.reads), None)
        return not _in_part(instance, shard, part)


def _in_part(instance: Instance, shard: Shard, part: PartialModel | None) -> bool:
    if part is None or instance.sharding != "pipeline":
        return False
    return part.holds(shard.first_layer, shard.last_layer)


def admitted(
    instance: Instance, shard: Shard, table: SlotTable, here: NodeInventory
) -> Refusal | list[FetchModel] | None:
    """Return None if the rank can start now, a list of fetches (maybe empty) if it must wait, or a
    refusal.

    Memory is checked before a fetch begins and when the rank could start, not in between. If
    runners are leaving, the decision waits until their memory is free.
    """
    weights = supplied(instance, shard, here)
    if isinstance(weights, Refusal) or weights == []:
        return weights
    refusal = crowded(instance, shard, table, here)
    if refusal is not None and any(slot.life in LEAVING for slot in table.slots.values()):
        return []
    return refusal or weights


def crowded(
    instance: Instance, shard: Shard, table: SlotTable, here: NodeInventory
) -> Refusal | None:
    """Return why free memory, of this machine or of a GPU, is too small; None if it is enough."""
    if (refusal := crowded_device(instance, shard, here)) is not None or here.free_bytes is None:
        return refusal
    coming = sum(_still_coming(slot, here) for slot in table.slots.values())
    free = here.free_bytes - coming
    if shard.memory_bytes <= free * TOLERANCE:
        return None
    return Refusal(
        reason="insufficient_memory",
        message=(
            f"{instance.model} was placed here with {shard.memory_bytes / 1e9:.2f} "
            f"GB reserved, but only {max(free, 0) / 1e9:.2f} GB are free now (a "
            "shortage of 10 % is tolerated)"
        ),
        retry_after_s=ROOM_RETRY_S,
        facts={
            "reserved_bytes": shard.memory_bytes,
            "free_bytes": here.free_bytes,
            "loading_bytes": coming,
        },
    )


def crowded_device(instance: Instance, shard: Shard, here: NodeInventory) -> Refusal | None:
    """Return which GPU has less free memory than the rank reserves there, or is gone; None if all
    have enough. Memory that is not measured counts as enough."""
    by_key = {device.key: device for device in here.devices}
    for share in shard.devices:
        device = by_key.get(share.key)
        free = None if device is None else device.free_bytes
        if device is not None and (free is None or share.bytes_reserved <= free * TOLERANCE):
            continue
        title = device_title(share.key)
        have = (
            f"only {free / 1e9:.2f} GB are free there now (a shortage of 10 % is tolerated)"
            if free is not None
            else "the driver no longer lists this GPU; check it with the GPU maker's tool"
        )
        return Refusal(
            reason="insufficient_memory",
            message=(
                f"{instance.model} was placed here with {share.bytes_reserved / 1e9:.2f} GB on "
                f"{title}, but {have}"
            ),
            retry_after_s=ROOM_RETRY_S,
            facts={
                "device": title,
                "reserved_bytes": share.bytes_reserved,
                "free_bytes": free,
            },
        )
    return None


def supplied(
    instance: Instance, shard: Shard, here: NodeInventory
) -> Refusal | list[FetchModel] | None:
    """Return None if the weights are on this node and on the nodes of the other ranks. Return a
    list of fetches (maybe empty) while some weights are still expected, or a refusal if they will
    not arrive."""
    model, elsewhere = instance.reads, here.elsewhere
    if instance.test is not None:
        return None
    if not here.has(instance, shard):
        if (refusal := elsewhere.fetches.get(model)) is not None:
            return refusal
        if model in elsewhere.fetches and model not in elsewhere.arrived:
            return []
        if (card := elsewhere.offered(model)) is not None:
            in_part = instance.sharding == "pipeline"
            first, last = shard.first_layer, shard.last_layer
            return [FetchModel(model, part_wanted(card, first, last) if in_part else None)]
        text = f"{model} is no longer on the disk of this or any other node"
        return Refusal(reason="unknown_model", message=text) if elsewhere.has_heard else []
    others = [other for other in instance.shards if other.node != here.node]
    return [] if any(here.other_lacks(instance, other) for other in others) else None


def vanished(instance: Instance, shard: Shard, here: NodeInventory) -> Refusal | None:
    """Return why a rank can no longer be loaded from this disk; None if it can."""
    if instance.test is not None or here.has(instance, shard):
        return None
    text = f"{instance.reads} is no longer on this node's disk"
    return Refusal(reason="unknown_model", message=text)


def _still_coming(slot: Slot, here: NodeInventory) -> int:
    """Return the bytes of weights that the slot's runner has yet to load into this machine's
    memory."""
    if slot.life != "loading" or slot.hello is None:
        return 0
    if slot.task is not None and slot.task.instance in here.on_devices:
        return 0
    return max(0, slot.hello.total_bytes - slot.hello.done_bytes)
