"""Whether a rank may start here now: what leaves gives memory back, and is waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.wire.ids import InstanceId, NodeId
from bus.wire.instances import Instance, Shard
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
