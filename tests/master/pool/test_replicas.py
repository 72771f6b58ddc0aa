"""Replicas, in simulated time with the real holder: when one comes, who it never hurts, when it
goes; and the rules behind that, for whatever is there."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from bus.replica.state import ClusterState
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.commands import DeleteInstance, PinModel, TakeLease
from bus.wire.messages.events import InstanceDraining
from bus.wire.messages.readings import ModelDemand
from bus.wire.pool import LeaseId, PoolCopy
from master.decisions.decide import Policy
from master.pool import (
    Copy,
    CopyUse,
    LoadMeters,
    ModelLoad,
    PoolChoice,
    PoolSettings,
    Victim,
    Yielding,
    due,
    loads_of,
    over,
    replicas_in,
)
from master.pool.choice import _replicas_first  # pyright: ignore[reportPrivateUsage]
from master.pool.replicas import FAILED_PAUSE_S, LONGEST_LOOK_S
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
    assert "its copy had too much to do" in found.replica and "requests" in found.replica
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
    assert "little was asked of a" in left.why
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


# --- the rules alone ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copies", "rows", "heavy", "light"),
    [
        (1, 0, False, True), (1, 1, False, False), (1, 7, False, False), (1, 8, True, False),
        (2, 4, False, True), (2, 5, False, False), (2, 15, False, False), (2, 16, True, False),
        (3, 8, False, True), (3, 9, False, False),
    ],
)  # fmt: skip
def test_much_and_little_to_do_are_a_factor_of_two_apart(
    copies: int, rows: int, heavy: bool, light: bool
) -> None:
    load, settings = ModelLoad(copies, rows), PoolSettings(replica_rows=8)
    assert (load.is_heavy(settings), load.is_light(settings)) == (heavy, light)


def option(cost_s: float, *leaving: tuple[str, float]) -> PoolChoice:
    """A choice for which copies leave, each with why it came and what its leaving costs."""
    victims = [
        Victim(Copy(some_copy(f"i{n}", replica), None, None, 1.0, replica=replica), given, cost)
        for n, (replica, cost) in enumerate(leaving)
        for given in [Yielding(0.0)]
    ]
    return PoolChoice({}, tuple(victims), cost_s=cost_s)


def test_a_place_for_which_replicas_leave_goes_before_what_takes_an_only_copy() -> None:
    far, near = option(60.0, ("load", 0.0)), option(0.1, ("", 0.1))
    mixed, split = option(0.2, ("load", 0.0), ("", 0.2)), option(5.0)
    assert _replicas_first([near, far, mixed, split]) == [far, split]
    assert _replicas_first([near, mixed, split]) == [near, mixed, split]


def test_meters_rise_by_no_more_than_time_and_never_beyond_what_is_waited_for() -> None:
    dice = random.Random(48)
    model = ModelId("a")
    for _ in range(200):
        meters, now, heavy_s = LoadMeters(), 0.0, 0.0
        for _ in range(60):
            step = dice.choice((0.1, 0.5, 1.0, 5.0))
            load = ModelLoad(dice.randint(1, 3), dice.randint(0, 8))
            now += step
            was_due = meters.is_due(model, TWO_ROWS)
            meters.look({model: load}, TWO_ROWS, now)
            heavy_s += min(step, LONGEST_LOOK_S) if load.is_heavy(TWO_ROWS) else 0.0
            assert 0.0 <= meters.heavy_s[model] <= min(AFTER_S, heavy_s + 1e-9)
            assert 0.0 <= meters.light_s[model] <= GONE_S
            assert not (load.is_heavy(TWO_ROWS) and load.is_light(TWO_ROWS))
            if not was_due and meters.is_due(model, TWO_ROWS):
                assert heavy_s >= AFTER_S - 1e-9 and load.is_heavy(TWO_ROWS)
    meters.look({}, TWO_ROWS, now + 1.0)
    assert not meters.heavy_s and not meters.light_s


def test_what_copies_have_to_do_is_counted_once_and_of_those_alone_that_take_requests() -> None:
    def copy(name: str, rows: int | None, **fields: Any) -> Copy:
        use = None if rows is None else CopyUse(rows, 0.0, None, 0.0, 0.0)
        return Copy(some_copy(name, "", **{"status": "ready", **fields}), use, None, 1.0)

    copies = [
        copy("i1", 3), copy("i2", None), copy("i3", 4),
        copy("i4", 9, status="draining"), copy("i5", 9, status="placed"),
        copy("i6", 9, yields_to="c"), copy("i7", 2, model=ModelId("b")),
    ]  # fmt: skip
    waits = ModelDemand(model=ModelId("a"), waiting=5, best_priority=10, oldest_s=1.0)
    both = {ModelId("a"): ModelLoad(3, 3 + 4 + 5), ModelId("b"): ModelLoad(1, 2)}
    assert loads_of(copies, {ModelId("a"): waits}) == both
    assert loads_of(copies, {}) == {**both, ModelId("a"): ModelLoad(3, 7)}


def test_of_two_models_that_are_due_the_one_with_more_rows_a_copy_goes_first() -> None:
    instances = {f"i{m}": some_copy(f"i{m}", "", model=ModelId(m), status="ready") for m in "abc"}
    loads = {ModelId(m): ModelLoad(1, rows) for m, rows in (("a", 4), ("b", 9), ("c", 5))}
    meters = LoadMeters(heavy_s={ModelId(m): AFTER_S for m in "ab"} | {ModelId("c"): AFTER_S - 1})
    assert due(ClusterState(instances=instances), loads, meters, TWO_ROWS) == ["b", "a"]
    meters.paused_until = {ModelId("b"): 9.0}
    assert due(ClusterState(instances=instances), loads, meters, TWO_ROWS) == ["a"]


def test_a_pause_that_is_over_or_longer_than_there_are_is_not_taken_up() -> None:
    meters = LoadMeters()
    meters.recall({ModelId("a"): 5.0, ModelId("b"): 10.5, ModelId("c"): 1e9}, 10.0)
    assert meters.paused_until == {ModelId("b"): 10.5, ModelId("c"): 10.0 + FAILED_PAUSE_S}
    meters.look({}, TWO_ROWS, 11.0)
    assert set(meters.paused_until) == {ModelId("c")}


def some_copy(name: str, replica: str, **fields: Any) -> Instance:
    node = fields.pop("node", NodeId("n1"))
    shard = Shard(rank=0, node=node, first_layer=0, last_layer=4, bytes_reserved=1)
    more = {"model": ModelId("a"), **fields}
    return Instance(
        instance=InstanceId(name), shards=(shard,), context_tokens=8, keep_alive_s=1.0,
        replica=replica, **more,
    )  # fmt: skip


def some_state(dice: random.Random) -> ClusterState:
    found: dict[str, Instance] = {}
    for number in range(dice.randint(0, 6)):
        name = InstanceId(f"i{number}")
        found[name] = some_copy(
            name, dice.choice(("", "load")), node=NodeId(f"n{dice.randint(1, 4)}"),
            model=ModelId(dice.choice("ab")), yields_to=dice.choice(("", "", "c")),
            status=dice.choice(("placed", "ready", "draining", "failed")),
        )  # fmt: skip
    return ClusterState(instances=found)


def test_whatever_is_there_a_model_that_answers_has_a_copy_that_is_no_replica() -> None:
    dice = random.Random(480)
    for _ in range(2_000):
        state = some_state(dice)
        replicas = replicas_in(state.instances.values())
        for model in "ab":
            mine = [one for one in state.instances.values() if one.model == model]
            answers = [o for o in mine if o.status == "ready" and not o.yields_to]
            assert not answers or any(o.instance not in replicas for o in answers)
            assert answers or not any(o.instance in replicas for o in mine)
        assert all(state.instances[name].replica for name in replicas)
        settings = replace(TWO_ROWS, replicas=dice.randint(0, 2))
        meters = LoadMeters(light_s={ModelId(m): GONE_S for m in "ab"})
        gone = over(state, replicas, meters, settings)
        assert gone.keys() <= replicas.keys()
        loads = {ModelId(m): ModelLoad(dice.randint(1, 3), 9) for m in "ab"}
        meters = LoadMeters(heavy_s={ModelId(m): AFTER_S for m in "ab"})
        for model in due(state, loads, meters, settings):
            mine = [o for o in state.instances.values() if o.model == model]
            there = sum(o.status != "failed" for o in mine)
            assert there == loads[model].copies <= settings.replicas
