"""Whether a rank may start here now: what leaves gives memory back, and is waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.wire.accelerators import Device, DeviceShare
from bus.wire.ids import Boot, InstanceId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.control import SlotHello
from worker.slots.actions import Task
from worker.slots.admission import USUAL, NodeInventory, admitted
from worker.slots.table import Life, Slot, SlotTable

NODE = NodeId("n1")
NEEDED = 1_000
SHARD = Shard(rank=0, node=NODE, first_layer=0, last_layer=2, bytes_reserved=NEEDED)
INSTANCE = Instance(
    instance=InstanceId("new"), model="m", shards=(SHARD,), status="placed", context_tokens=8,
    keep_alive_s=1.0,
)  # fmt: skip
ROOMY = NodeInventory(NODE, True, NEEDED, frozenset({"m"}), 30.0, 10.0)
CROWDED = replace(ROOMY, free_bytes=0)


def beside(life: Life) -> SlotTable:
    """A free slot, and one of another instance."""
    other = Slot("01", life=life, pid=7, task=Task(InstanceId("old"), 1, 0))
    return SlotTable({"00": Slot("00"), "01": other})


@pytest.mark.parametrize("life", ["draining", "stopping", "killed"])
def test_without_room_a_rank_waits_for_a_slot_that_leaves(life: Life) -> None:
    assert admitted(INSTANCE, SHARD, beside(life), CROWDED) == []


@pytest.mark.parametrize("life", ["free", "ready"])
def test_without_room_a_rank_is_refused_where_nothing_leaves(life: Life) -> None:
    refusal = admitted(INSTANCE, SHARD, beside(life), CROWDED)
    assert refusal and not isinstance(refusal, list)
    assert refusal.reason == "insufficient_memory"
    assert refusal.facts["reserved_bytes"] == NEEDED


@pytest.mark.parametrize("life", ["ready", "draining"])
def test_with_room_a_rank_starts_whatever_leaves(life: Life) -> None:
    assert admitted(INSTANCE, SHARD, beside(life), ROOMY) is None


def test_a_tenth_less_memory_than_was_reserved_is_tolerated() -> None:
    enough = replace(ROOMY, free_bytes=910)
    assert admitted(INSTANCE, SHARD, beside("ready"), enough) is None
    short = replace(ROOMY, free_bytes=909)
    assert admitted(INSTANCE, SHARD, beside("ready"), short) is not None


@pytest.mark.parametrize("life", ["starting", "idle", "loading", "ready", "draining"])
def test_a_silent_runner_of_any_life_is_looked_into_well_before_it_is_ended(life: Life) -> None:
    limit_s = USUAL.silence_s(life)
    assert limit_s is not None
    assert not USUAL.is_suspect(life, limit_s / 4)
    assert USUAL.is_suspect(life, limit_s / 2)


@pytest.mark.parametrize("life", ["free", "stopping", "killed"])
def test_a_slot_that_is_told_to_go_is_not_looked_into(life: Life) -> None:
    assert not USUAL.is_suspect(life, 3600.0)


def on_gpus(*reserved: int) -> Shard:
    """The rank, with these bytes on GPU 0, 1, ..., and 100 bytes of the machine's memory."""
    shares = tuple(
        DeviceShare(vendor="nvidia", index=index, bytes_reserved=bytes_)
        for index, bytes_ in enumerate(reserved)
    )
    return SHARD.model_copy(update={"bytes_reserved": sum(reserved) + 100, "devices": shares})


def with_free(*free: int | None, memory: int = 100) -> NodeInventory:
    devices = tuple(
        Device(vendor="nvidia", index=index, total_bytes=9_000, free_bytes=bytes_)
        for index, bytes_ in enumerate(free)
    )
    return replace(ROOMY, free_bytes=memory, devices=devices)


def test_a_rank_on_gpus_needs_their_memory_and_little_of_the_machines() -> None:
    shard = on_gpus(5_000, 2_000)
    assert admitted(INSTANCE, shard, beside("ready"), with_free(5_000, 2_000)) is None
    assert admitted(INSTANCE, shard, beside("ready"), with_free(4_600, None)) is None, "a tenth"
    short = admitted(INSTANCE, shard, beside("ready"), with_free(5_000, 1_000))
    assert short and not isinstance(short, list)
    assert "on NVIDIA GPU 1, but only 0.00 GB are free there" in short.message
    assert short.facts == {"device": "NVIDIA GPU 1", "reserved_bytes": 2_000, "free_bytes": 1_000}
    gone = admitted(INSTANCE, shard, beside("ready"), with_free(5_000))
    assert gone and not isinstance(gone, list) and "no longer lists this GPU" in gone.message
    assert admitted(INSTANCE, shard, beside("ready"), with_free(5_000, 2_000, memory=50))


def test_weights_that_are_on_their_way_to_a_gpu_take_no_memory_of_the_machine() -> None:
    hello = SlotHello(
        slot="01", boot=Boot("b"), pid=7, phase="loading", total_bytes=9_000,
        protocol_min=1, protocol_max=1,
    )  # fmt: skip
    other = Slot("01", life="loading", pid=7, task=Task(InstanceId("old"), 1, 0), hello=hello)
    table = SlotTable({"00": Slot("00"), "01": other})
    assert admitted(INSTANCE, SHARD, table, ROOMY) is not None
    there = replace(ROOMY, on_devices=frozenset({InstanceId("old")}))
    assert admitted(INSTANCE, SHARD, table, there) is None
