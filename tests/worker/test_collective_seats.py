"""A worker's part of a collective test: ranks without weights, memory that has to be there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bus.hardware.collective_test import order_of
from bus.process.endpoints import Endpoints
from bus.replica.state import ClusterState
from bus.wire.ids import Boot, InstanceId, NodeId
from bus.wire.instances import Instance, RankSeat, Shard
from bus.wire.messages.collectives import TEST_MODEL
from bus.wire.messages.control import SlotHello
from bus.wire.messages.events import LoadRefused
from tests.worker.test_fetch_reconcile import card
from worker.models.local_models import LocalModels
from worker.models.weights import Shelf, Weights
from worker.slots.actions import GiveSpec, SeatRank, StartSlot, StopSlot, Task, Tell
from worker.slots.admission import NodeInventory
from worker.slots.facts import Reported
from worker.slots.reconcile import reconcile
from worker.slots.runner_specs import DataPorts, RunnerDefaults, RunnerSpecs, open_secret
from worker.slots.table import Seen, SlotTable
from worker.transfer.sources import NOTHING_ELSEWHERE

HERE, THERE = NodeId("n1"), NodeId("n2")
DEFAULTS = RunnerDefaults(
    max_rows=4, max_waiting=2, prefill_share=0.7, prefix_cache_bytes=1 << 20,
    default_max_tokens=64, drop_idle_s=60.0, load_deadline_s=60.0,
)  # fmt: skip
BYTES = 300 << 20


def instance(**more: object) -> Instance:
    shards = tuple(
        Shard(rank=rank, node=node, first_layer=0, last_layer=0, bytes_reserved=BYTES)
        for rank, node in enumerate((HERE, THERE))
    )
    fields = {
        "instance": InstanceId("t"), "model": TEST_MODEL, "shards": shards, "sharding": "tensor",
        "context_tokens": 0, "keep_alive_s": -1.0, "test": order_of("quick", BYTES),
    }  # fmt: skip
    return Instance.model_validate(fields | more)


def state(one: Instance) -> ClusterState:
    return ClusterState(instances={one.instance: one})


DESK = NodeInventory(HERE, True, 2 * BYTES, frozenset(), 30.0, 1.0)
"""No model lies on this node's disk; another node has one, and may not give it."""


def table() -> SlotTable:
    found = SlotTable()
    found.listed([Seen("00", False, 0, None)], 0.0)
    return found


def test_a_rank_needs_no_weights_and_fetches_none() -> None:
    slots, told = table(), Reported()
    desk = replace(DESK, elsewhere=replace(NOTHING_ELSEWHERE, cards={THERE: card(THERE, "m")}))
    (start,) = reconcile(state(instance()), slots, desk, told)
    assert isinstance(start, StartSlot)
    slots.note(start, 1.0)
    (seated,) = reconcile(state(instance()), slots, desk, told)
    assert isinstance(seated, SeatRank)
    told.note(seated, 1.0)
    idle = SlotHello(slot="00", pid=7, boot=Boot("b"), protocol_min=1, protocol_max=1, phase="idle")
    slots.take_hello(idle, 2.0)
    seats = tuple(
        RankSeat(rank=rank, node=node, first_layer=0, last_layer=0)
        for rank, node in enumerate((HERE, THERE))
    )
    (give,) = reconcile(state(instance(seats=seats)), slots, replace(desk, now=2.1), told)
    assert isinstance(give, GiveSpec) and give.instance.test is not None


def test_memory_that_is_not_there_is_refused_like_a_load() -> None:
    actions = reconcile(
        state(instance()), table(), replace(DESK, free_bytes=BYTES // 2), Reported()
    )
    (tell,) = [action for action in actions if isinstance(action, Tell)]
    assert isinstance(tell.fact, LoadRefused)
    assert tell.fact.refusal.reason == "insufficient_memory"


def test_ranks_of_a_test_that_failed_are_ended() -> None:
    slots = table()
    slots.listed([Seen("00", True, 7, None)], 0.0)
    hello = SlotHello(
        slot="00", pid=7, boot=Boot("b"), protocol_min=1, protocol_max=1, phase="loading",
        instance=InstanceId("t"), generation=1,
    )  # fmt: skip
    slots.take_hello(hello, 1.0)
    (stop,) = reconcile(state(instance(status="failed")), slots, DESK, Reported())
    assert isinstance(stop, StopSlot)


def test_how_long_ranks_may_take_to_meet_is_said_in_their_spec(tmp_path: Path) -> None:
    seats = tuple(
        RankSeat(rank=rank, node=node, first_layer=0, last_layer=0, ring=("127.0.0.1:9",))
        for rank, node in enumerate((HERE, THERE))
    )
    one = instance(seats=seats)
    none = LocalModels(Weights(Shelf({}, (), tmp_path, float32=True)), tmp_path)
    data = DataPorts("", 0, ())
    specs = RunnerSpecs(Endpoints("/run"), DEFAULTS, data, none, open_secret, 35.0)
    spec = specs.spec(GiveSpec("00", Task(one.instance, 1, 0), one, one.shards[0]))
    assert spec.group is not None and spec.group.form_deadline_s == 35.0
