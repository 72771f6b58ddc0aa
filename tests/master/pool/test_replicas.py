"""Replicas, in simulated time with the real holder: when one comes, who it never hurts, when it
goes; and the rules behind that, for whatever is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.commands import DeleteInstance, PinModel, TakeLease
from bus.wire.messages.events import InstanceDraining
from bus.wire.pool import LeaseId, PoolCopy
from master.decisions.decide import Policy
from master.pool import (
    PoolSettings,
)
from master.pool.replicas import FAILED_PAUSE_S
from tests.sim.pool_world import GB, HOLDER, Client, Kind, PoolWorld, run_clients

AFTER_S, GONE_S, ROWS, LOAD_S = 10.0, 20.0, 2, 2.0
TWO, THREE = ({f"n{n}": (9.0, 2) for n in range(1, most + 1)} for most in (2, 3))
SOON_S = AFTER_S + LOAD_S + 3.0
TWO_ROWS = PoolSettings(replica_rows=ROWS, replica_after_s=AFTER_S, replica_gone_s=GONE_S)


def world(
    sizes: dict[str, float], nodes: dict[str, tuple[float, int]] = TWO, **settings: Any
) -> PoolWorld:
    kinds = [Kind(ModelId(name), size, LOAD_S) for name, size in sizes.items()]
    policy = Policy(keep_alive_s=10_000.0, pool=replace(TWO_ROWS, **settings))
    return PoolWorld(kinds, nodes, policy, rows=4)


def busy(made: PoolWorld, model: str, count: int = 6) -> list[Client]:
    return [Client(made, [model], work_s=1.1 + 0.1 * number) for number in range(count)]


def copies(made: PoolWorld, model: str) -> list[Instance]:
    return [one for one in made.state.instances.values() if one.model == model]


def nodes_of(made: PoolWorld, model: str) -> list[str]:
    return sorted(str(one.shards[0].node) for one in copies(made, model))


def told(made: PoolWorld) -> dict[InstanceId, PoolCopy]:
    reading = made.holder.pool(made.state, HOLDER, made.now)
    return {one.instance: one for one in reading.copies}


def replica_of(made: PoolWorld, model: str) -> PoolCopy:
    (found,) = [one for one in told(made).values() if one.model == model and one.replica]
    return found


def with_replica(**settings: Any) -> tuple[PoolWorld, list[Client]]:
    """A world of two nodes in which `a` is under load and has a replica that is ready; `b` can be
    loaded beside none of its copies."""
    made = world({"a": 3, "b": 4}, **settings)
    clients = busy(made, "a")
    run_clients(made, clients, SOON_S + LOAD_S)
    assert [one.status for one in copies(made, "a")] == ["ready", "ready"]
    return made, clients


def test_a_model_whose_load_lasts_gets_a_copy_on_another_node_and_both_answer() -> None:
    made = world({"a": 3})
    clients = busy(made, "a")
    run_clients(made, clients, AFTER_S - 1.0)
    assert len(copies(made, "a")) == 1, "a moment's load is none"
    run_clients(made, clients, SOON_S)
    assert nodes_of(made, "a") == ["n1", "n2"]
    assert all(made.held[one.instance].running for one in copies(made, "a")), "both answer"
    found = replica_of(made, "a")
    assert "its instance was overloaded" in found.replica and "requests" in found.replica
    assert not found.turn_left_s and found.in_use
    run_clients(made, clients, 10 * AFTER_S)
    assert len(copies(made, "a")) == 2, "one beside the first is the most"


@pytest.mark.parametrize(("most", "count"), [(0, 1), (1, 2), (2, 3), (9, 3)])
def test_there_are_as_many_replicas_as_is_set_and_as_there_are_idle_nodes(
    most: int, count: int
) -> None:
    made = world({"a": 3}, THREE, replicas=most)
    run_clients(made, busy(made, "a", 30), 6 * SOON_S)
    assert len(copies(made, "a")) == count
    assert len(set(nodes_of(made, "a"))) == count


def test_a_node_in_use_takes_no_replica_and_an_idle_model_is_not_evicted_for_one() -> None:
    made = world({"a": 3, "b": 1, "c": 5})
    other = Client(made, ["b"], work_s=1.0)
    clients = busy(made, "a")
    run_clients(made, [*clients, other], 3.0)
    run_clients(made, [*clients, other], 3 * SOON_S)
    assert nodes_of(made, "a") != nodes_of(made, "b"), "or the test shows nothing"
    assert len(copies(made, "a")) == 1, "b is in use on the other node"
    made.ask("c", work_s=0.1)
    run_clients(made, clients, 3 * SOON_S)
    assert [one.status for one in copies(made, "c")] == ["ready"], "c stays where it idles"
    assert len(copies(made, "a")) == 1, "and there is no room beside it"


def test_a_replica_goes_beside_another_model_that_idles() -> None:
    made = world({"a": 3, "b": 1})
    other, clients = Client(made, ["b"], work_s=1.0), busy(made, "a")
    run_clients(made, [*clients, other], 3.0)
    made.run(3.0)
    (node,) = nodes_of(made, "b")
    assert nodes_of(made, "a") != [node], "or the test shows nothing"
    run_clients(made, clients, 3 * SOON_S)
    assert set(nodes_of(made, "a")) == {"n1", "n2"} and len(copies(made, "a")) == 2
    assert [one.status for one in copies(made, "b")] == ["ready"]


def take_lease(made: PoolWorld, node: str, gigabytes: int) -> Any:
    lease = TakeLease(
        command_id=CommandId(f"lease-{made.now}"), lease=LeaseId("lease-x"), node=NodeId(node),
        owner="x", size_bytes=gigabytes * GB, priority=10, ttl_s=3600.0,
    )  # fmt: skip
    return made.command(lease)


@pytest.mark.parametrize(("chip", "count"), [("Apple M2 Pro", 2), ("Apple M1", 1)])
def test_a_node_that_is_much_slower_than_the_first_gets_no_replica(chip: str, count: int) -> None:
    made = world({"a": 3})
    made.chips = {NodeId("n1"): "Apple M4 Max", NodeId("n2"): chip}
    made.hear_cards()
    made.run(1.0)
    run_clients(made, busy(made, "a"), 2 * SOON_S)
    assert len(copies(made, "a")) == count and nodes_of(made, "a")[0] == "n1"


def test_what_is_leased_is_not_free_for_a_replica() -> None:
    made = world({"a": 3})
    clients = busy(made, "a")
    run_clients(made, clients, 3.0)
    take_lease(made, next(node for node in TWO if [node] != nodes_of(made, "a")), 6)
    assert made.state.leases, "the lease is granted"
    run_clients(made, clients, 3 * SOON_S)
    assert len(copies(made, "a")) == 1


def test_no_replica_comes_while_something_waits_for_memory() -> None:
    made = world({"a": 3, "b": 5}, THREE)
    clients = busy(made, "a")
    run_clients(made, clients, 3.0)
    clients.append(Client(made, ["b"], work_s=1.0, priority=1))
    run_clients(made, clients, 4.0)
    for _ in range(int(3 * SOON_S)):
        take_lease(made, nodes_of(made, "b")[0], 8)
        run_clients(made, clients, 1.0)
    assert not made.state.leases and len(copies(made, "a")) == 1
    run_clients(made, clients, SOON_S)
    assert len(copies(made, "a")) == 2, "it comes when that is given up"


def test_a_replica_leaves_at_once_for_another_model_and_the_first_copy_stays() -> None:
    made, clients = with_replica()
    first = next(one for one in copies(made, "a") if not one.replica)
    ask = made.ask("b", work_s=0.2)
    began = made.now
    while ask not in made.done and made.now < began + 30.0:
        run_clients(made, clients, 0.1)
    assert ask.began_at is not None and ask.began_at - began < LOAD_S + 4.0, "no turn is kept"
    assert [one.instance for one in copies(made, "a")] == [first.instance]
    assert not made.broken_off, "what ran was let finish"


def test_a_replica_leaves_before_an_idle_model_that_would_be_cheaper() -> None:
    made = world({"a": 3, "b": 5, "c": 5}, {"n1": (9.0, 2), "n2": (9.0, 2), "n3": (9.0, 2)})
    ask = made.ask("b", work_s=0.1)
    assert made.run(30.0, lambda: ask in made.done)
    clients = busy(made, "a")
    run_clients(made, clients, 2 * SOON_S)
    assert len(copies(made, "a")) == 2 and len(copies(made, "b")) == 1
    ask = made.ask("c", work_s=0.1)
    run_clients(made, clients, 12.0)
    assert ask in made.done
    assert len(copies(made, "b")) == 1, "the only copy of b has stayed"
    assert len(copies(made, "a")) == 1


def test_a_replica_that_loads_still_is_given_up_for_what_waits() -> None:
    made = world({"a": 3, "b": 4})
    clients = busy(made, "a")
    while len(copies(made, "a")) < 2:
        run_clients(made, clients, 0.1)
    ask = made.ask("b", work_s=0.2)
    run_clients(made, clients, LOAD_S + 4.0)
    assert ask in made.done and len(copies(made, "a")) == 1
    assert [model for model, _, _ in made.loads] == ["a", "b"], "it was not waited for"


def test_a_replica_of_a_pinned_model_makes_way_and_the_pinned_copy_does_not() -> None:
    made, clients = with_replica()
    made.command(PinModel(command_id=CommandId("p"), model=ModelId("a"), pinned=True, by="ann"))
    assert sorted(one.pinned_by or "" for one in told(made).values()) == ["", "ann"]
    ask = made.ask("b", work_s=0.2, priority=20)
    run_clients(made, clients, LOAD_S + 6.0)
    assert ask in made.done and len(copies(made, "a")) == 1


def test_a_replica_goes_when_its_load_has_gone_for_a_while_and_not_before() -> None:
    made, clients = with_replica()
    run_clients(made, clients[:1], GONE_S - 2.0)
    assert len(copies(made, "a")) == 2, "a moment's quiet is none"
    run_clients(made, clients, GONE_S)
    run_clients(made, clients[:1], GONE_S - 2.0)
    assert len(copies(made, "a")) == 2, "load has taken the quiet back"
    seen: list[Any] = []
    made.on_event = lambda body, _before: seen.append(body)
    run_clients(made, clients[:1], GONE_S)
    (left,) = [one for one in seen if isinstance(one, InstanceDraining)]
    assert "a had little load" in left.why
    assert [bool(one.replica) for one in copies(made, "a")] == [False]
    assert not made.broken_off


def test_replicas_go_one_after_the_other_each_when_there_was_little_to_do_for_a_while() -> None:
    made = world({"a": 3}, THREE, replicas=2)
    clients = busy(made, "a", 20)
    run_clients(made, clients, 3 * SOON_S)
    assert len(copies(made, "a")) == 3
    went_at: list[float] = []

    def watch(body: Any, _before: Any) -> None:
        if isinstance(body, InstanceDraining):
            went_at.append(made.now)

    made.on_event = watch
    run_clients(made, clients[:1], 3 * GONE_S)
    assert len(went_at) == 2 and went_at[1] - went_at[0] >= GONE_S - 1.0


def test_a_replica_is_none_when_the_first_copy_is_gone() -> None:
    made, clients = with_replica()
    first = next(one for one in copies(made, "a") if not one.replica)
    gone = DeleteInstance(command_id=CommandId("d"), instance=first.instance, drain_s=60.0)
    made.command(gone)
    run_clients(made, clients, 3.0)
    (stays,) = copies(made, "a")
    assert stays.instance != first.instance and not told(made)[stays.instance].replica
    assert told(made)[stays.instance].turn_left_s > 0.0, "it keeps its turn as any other"
    made.crash(made.held[stays.instance])
    assert [one.instance for one in copies(made, "a")] == [stays.instance], "and is loaded again"


def test_a_lost_node_makes_the_replica_the_copy_that_stays() -> None:
    made, clients = with_replica()
    first = next(one for one in copies(made, "a") if not one.replica)
    made.lose(first.shards[0].node)
    run_clients(made, clients[:1], 6.0)
    other = next(one for one in copies(made, "a") if one.instance != first.instance)
    assert not told(made)[other.instance].replica
    assert other.status == "ready"


@pytest.mark.parametrize("holders", [1, 2])
@pytest.mark.parametrize("before_s", [2.7, 3.0, 3.3])
def test_a_replica_stays_while_nothing_is_heard_of_the_first_copys_node(
    before_s: float, holders: int
) -> None:
    made, clients = with_replica()
    first = next(one for one in copies(made, "a") if not one.replica)
    run_clients(made, clients[:1], GONE_S - before_s)
    assert len(copies(made, "a")) == 2
    made.lose(first.shards[0].node)
    if holders == 2:
        made.begin_term()
    run_clients(made, clients[:1], 2 * GONE_S)
    other = next(one for one in copies(made, "a") if one.instance != first.instance)
    assert other.status == "ready"


@pytest.mark.proof
@pytest.mark.parametrize("holders", [1, 2])
def test_a_replica_that_fails_is_not_tried_again_for_ten_minutes(holders: int) -> None:
    made, clients = with_replica()
    made.crash(made.held[replica_of(made, "a").instance])
    if holders == 2:
        made.begin_term()
    assert [bool(one.replica) for one in copies(made, "a")] == [False]
    run_clients(made, clients, 3 * SOON_S)
    assert len(copies(made, "a")) == 1
    run_clients(made, clients, FAILED_PAUSE_S)
    assert len(copies(made, "a")) == 2


def test_a_new_holder_keeps_replicas_and_knows_them() -> None:
    made, clients = with_replica()
    known = replica_of(made, "a")
    made.begin_term()
    run_clients(made, clients, 5.0)
    assert replica_of(made, "a") == known.model_copy(
        update={"in_use": True, "load_s": replica_of(made, "a").load_s}
    )
