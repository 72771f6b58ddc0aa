"""How the ranks of a group find each other: seats first, specs when all are known."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from bus.replica.state import ClusterState, apply
from bus.wire.errors import PortTaken
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankSeat, Shard
from bus.wire.messages.control import SlotHello
from bus.wire.messages.events import Event, GenerationOpened, InstancePlaced, RankSeated
from worker.machine.ports import PortPool
from worker.slots.actions import AssignSlot, GiveSpec, SeatRank, StartSlot, StopSlot, Task
from worker.slots.admission import USUAL, NodeInventory
from worker.slots.facts import Reported
from worker.slots.reconcile import reconcile
from worker.slots.table import Seen, SlotTable

HERE, THERE = NodeId("n1"), NodeId("n2")
NAME = InstanceId("i")


def placed() -> InstancePlaced:
    shards = (
        Shard(rank=0, node=HERE, first_layer=2, last_layer=4, bytes_reserved=1),
        Shard(rank=1, node=THERE, first_layer=0, last_layer=2, bytes_reserved=1),
    )
    instance = Instance(
        instance=NAME, model=ModelId("m"), shards=shards, sharding="pipeline", context_tokens=8,
        keep_alive_s=1.0,
    )  # fmt: skip
    return InstancePlaced(instance=instance)


def seat(rank: int, generation: int = 1, port: int = 9) -> RankSeated:
    found = RankSeat(
        rank=rank, node=(HERE, THERE)[rank], first_layer=0, last_layer=2, ring=(f"h:{port}",)
    )
    return RankSeated(instance=NAME, generation=generation, seat=found)


def state(*bodies: object) -> ClusterState:
    found = ClusterState()
    for body in bodies:
        event = Event(term=1, index=found.index + 1, at_s=0.0, body=body)  # pyright: ignore
        found = apply(found, event)
    return found


def desk(now: float) -> NodeInventory:
    return NodeInventory(HERE, True, None, frozenset({"m"}), 30.0, now)


def idle(table: SlotTable, now: float) -> None:
    hello = SlotHello(
        slot="00", pid=7, boot=Boot("b"), protocol_min=1, protocol_max=1, phase="idle"
    )
    table.take_hello(hello, now)


def test_a_rank_whose_seat_was_lost_with_a_log_makes_room_for_the_next_generation() -> None:
    """The worker that told of the seat is gone, and so is the log that knew it."""
    table = SlotTable()
    hello = SlotHello(
        slot="00", pid=7, boot=Boot("b"), protocol_min=1, protocol_max=1, phase="ready",
        instance=NAME, generation=1, rank=0,
    )  # fmt: skip
    table.take_hello(hello, 1.0)
    table.listed([Seen("00", True, 7, None)], 1.0)
    known, lost = state(placed(), seat(0), seat(1)), state(placed(), seat(1))

    def stopped(there: ClusterState, now: float, told: Reported) -> bool:
        return any(isinstance(one, StopSlot) for one in reconcile(there, table, desk(now), told))

    assert not stopped(lost, 2.0, Reported()), "it may still come"
    assert not stopped(known, 9.0, Reported())
    assert not stopped(lost, 9.0, Reported(seated={Task(NAME, 1, 0)})), "it is on its way"
    assert stopped(lost, 9.0, Reported())
    formed = {
        name: one.model_copy(update={"status": "ready"}) for name, one in lost.instances.items()
    }
    assert not stopped(lost.model_copy(update={"instances": formed}), 9.0, Reported())


def test_a_rank_is_seated_at_once_and_given_its_spec_when_all_are() -> None:
    table, told = SlotTable(), Reported()
    table.listed([Seen("00", False, 0, None)], 0.0)
    (start,) = reconcile(state(placed()), table, desk(1.0), told)
    assert isinstance(start, StartSlot)
    table.note(start, 1.0)
    (seated,) = reconcile(state(placed()), table, desk(1.1), told)
    assert isinstance(seated, SeatRank)
    assert (seated.task, seated.shard.first_layer) == (Task(NAME, 1, 0), 2)
    assert seated.nodes == (HERE, THERE)
    told.note(seated, 1.1)
    assert reconcile(state(placed()), table, desk(1.2), told) == [], "told once"
    idle(table, 2.0)
    assert reconcile(state(placed(), seat(0)), table, desk(2.1), told) == []
    whole = state(placed(), seat(1), seat(0))
    (give,) = reconcile(whole, table, desk(2.2), told)
    assert isinstance(give, GiveSpec)
    assert [one.rank for one in give.instance.seats] == [0, 1]


def test_a_rank_that_waits_in_vain_names_the_missing_ones() -> None:
    table, told = SlotTable(), Reported()
    table.listed([Seen("00", True, 7, None)], 0.0)
    idle(table, 1.0)
    table.note(AssignSlot("00", Task(NAME, 1, 0)), 1.0)
    half = state(placed(), seat(0))
    table.slots["00"] = replace(table.slots["00"], heard_at=USUAL.seat_s)
    assert reconcile(half, table, desk(0.5 + USUAL.seat_s), told) == []
    (stop,) = reconcile(half, table, desk(1.0 + USUAL.seat_s), told)
    assert isinstance(stop, StopSlot)
    assert "rank 1 on n2" in stop.why


def test_a_new_generation_has_new_seats_and_waits_for_the_old_rank_to_leave() -> None:
    again = GenerationOpened(instance=NAME, generation=2, why="rank lost")
    fresh = state(placed(), seat(0), seat(1), again, seat(1, generation=1))
    assert fresh.instances["i"].seats == ()
    table, told = SlotTable(), Reported()
    table.listed([Seen("00", True, 7, None), Seen("01", False, 0, None)], 0.0)
    table.take_hello(
        SlotHello(
            slot="00", pid=7, boot=Boot("b"), protocol_min=1, protocol_max=1, phase="ready",
            instance=NAME, generation=1, rank=0,
        ),
        1.0,
    )  # fmt: skip
    actions = reconcile(fresh, table, desk(1.1), told)
    assert not [one for one in actions if isinstance(one, StartSlot)]
    table.listed([Seen("00", False, 0, 0), Seen("01", False, 0, None)], 2.0)
    (start,) = reconcile(fresh, table, desk(2.1), told)
    assert isinstance(start, StartSlot)
    assert start.task == Task(NAME, 2, 0)


def test_a_later_seat_of_the_same_rank_replaces_the_first() -> None:
    found = state(placed(), seat(0, port=1), seat(0, port=2))
    assert [one.ring for one in found.instances["i"].seats] == [("h:2",)]


def test_ports_are_not_given_twice_in_a_row_and_taken_ones_are_passed_over() -> None:
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        first = owner.getsockname()[1]
        with pytest.raises(PortTaken, match=f"{first} to {first}"):
            PortPool(first, 1).fresh("127.0.0.1")
    pool = PortPool(21_950, 10)
    found = [pool.fresh("127.0.0.1") for _ in range(5)]
    assert len(set(found)) == 5
