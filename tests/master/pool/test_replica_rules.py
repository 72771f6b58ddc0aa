"""Which copies are replicas, when one is due and when one is over, for whatever is there."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from bus.replica.state import ClusterState
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.readings import ModelDemand
from bus.wire.messages.weights import Quantizing
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

AFTER_S, GONE_S, ROWS = 10.0, 20.0, 2
TWO_ROWS = PoolSettings(replica_rows=ROWS, replica_after_s=AFTER_S, replica_gone_s=GONE_S)
A, B = ModelId("a"), ModelId("b")


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
        copy("i6", 9, yields_to="c"), copy("i8", 9, quantizes=MAKING),
        copy("i7", 2, model=ModelId("b")),
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


def state_of(*instances: Instance) -> ClusterState:
    return ClusterState(instances={one.instance: one for one in instances})


def ready(name: str, replica: str = "", **fields: Any) -> Instance:
    return some_copy(name, replica, **{"status": "ready", **fields})


MAKING = Quantizing(source=B, bits=4)


@pytest.mark.parametrize(
    ("there", "replicas"),
    [
        ([ready("i1"), ready("i2", "load")], ["i2"]),
        ([ready("i1", "load"), ready("i2")], ["i1"]),
        ([ready("i1", "load"), ready("i2", "load")], ["i2"]),
        ([ready("i1"), some_copy("i2", "load")], ["i2"]),
        ([some_copy("i1", ""), ready("i2", "load")], []),
        ([some_copy("i1", ""), some_copy("i2", "load")], []),
        ([ready("i1", yields_to="b"), ready("i2", "load")], []),
        ([ready("i1", node=NodeId("quiet")), ready("i2", "load")], []),
        ([ready("i1", status="failed"), ready("i2", "load")], []),
        ([ready("i1"), ready("i2", "load", status="failed")], []),
        ([ready("i1"), ready("i2", "load", status="draining")], ["i2"]),
        ([ready("i1"), ready("i2", "load", yields_to="b")], ["i2"]),
        ([ready("i1"), ready("i2", "load", node=NodeId("quiet"))], ["i2"]),
        ([ready("i1", quantizes=MAKING), ready("i2", "load")], []),
        ([ready("i1"), ready("i2", "load", quantizes=MAKING)], []),
        ([ready("i1", model=B), ready("i2", "load")], []),
        ([ready("i1"), ready("i2", "load"), ready("i3", "load")], ["i2", "i3"]),
        ([ready("i1")], []),
    ],
)
def test_a_copy_is_a_replica_beside_another_that_answers(
    there: list[Instance], replicas: list[str]
) -> None:
    found = replicas_in(there, [NodeId("quiet")])
    assert found == dict.fromkeys(replicas, "load")


def test_a_copy_over_two_nodes_may_not_answer_when_either_is_quiet() -> None:
    shards = (*ready("i1").shards, *ready("i1", node=NodeId("n2")).shards)
    group = ready("i1").model_copy(update={"shards": shards})
    for quiet, replicas in (("n1", {}), ("n2", {}), ("n3", {"i2": "load"})):
        assert replicas_in([group, ready("i2", "load", node=NodeId("n9"))], [quiet]) == replicas


def heavy(*models: ModelId) -> LoadMeters:
    return LoadMeters(heavy_s=dict.fromkeys(models, AFTER_S))


@pytest.mark.parametrize(
    ("others", "copies", "is_due"),
    [
        ([], 1, True),
        ([ready("i2")], 2, False),
        ([ready("i2")], 1, False),
        ([some_copy("i2", "")], 1, False),
        ([some_copy("i2", "", status="draining")], 1, False),
        ([some_copy("i2", "", status="failed")], 1, True),
        ([some_copy("i2", "", quantizes=MAKING)], 1, True),
        ([ready("i2", model=B)], 1, True),
    ],
)
def test_a_replica_is_due_when_no_copy_loads_or_leaves_and_there_may_be_one_more(
    others: list[Instance], copies: int, is_due: bool
) -> None:
    state, loads = state_of(ready("i1"), *others), {A: ModelLoad(copies, 9)}
    assert due(state, loads, heavy(A), TWO_ROWS) == ([A] if is_due else [])
    assert due(state, loads, heavy(B), TWO_ROWS) == []
    two = replace(TWO_ROWS, replicas=2)
    assert due(state, loads, heavy(A), two) == ([A] if is_due or copies == 2 else [])


@pytest.mark.parametrize(
    ("heavy_s", "paused", "is_due"), [(AFTER_S, {}, True), (AFTER_S - 0.1, {}, False),
                                      (None, {}, False), (AFTER_S, {A: 9.0}, False)],
)  # fmt: skip
def test_a_model_is_due_after_its_time_unless_it_is_paused(
    heavy_s: float | None, paused: dict[ModelId, float], is_due: bool
) -> None:
    meters = LoadMeters({} if heavy_s is None else {A: heavy_s}, paused_until=paused)
    assert meters.is_due(A, TWO_ROWS) == is_due
    at_once = replace(TWO_ROWS, replica_after_s=0.0)
    assert meters.is_due(A, at_once) == (heavy_s is not None and not paused)


def test_a_model_is_over_after_its_time() -> None:
    for light, is_over in (({A: GONE_S}, True), ({A: GONE_S - 0.1}, False), ({}, False)):
        meters = LoadMeters(light_s=dict(light))
        assert meters.is_over(A, TWO_ROWS) == is_over
        assert meters.is_over(B, replace(TWO_ROWS, replica_gone_s=0.0)) is False


def test_replicas_beyond_the_setting_go_else_the_last_of_a_quiet_model() -> None:
    loading = some_copy("i3", "load")
    there = state_of(
        ready("i1"), ready("i2", "load"), loading, ready("i4", "load", yields_to="b"),
        ready("i5", "load", status="draining"), ready("i6", "load", model=B),
    )  # fmt: skip
    replicas = {InstanceId(f"i{n}"): "load" for n in (2, 3, 4, 5, 6)}
    quiet, two = LoadMeters(light_s={A: GONE_S}), replace(TWO_ROWS, replicas=2)
    little = "a had little load for 20 s"
    assert over(there, replicas, quiet, two) == {"i3": little}
    assert over(there, replicas, LoadMeters(), two) == {}
    assert over(there, replicas, quiet, TWO_ROWS) == {"i3": "pool.replicas is 1"}
    none = replace(TWO_ROWS, replicas=0)
    assert over(there, replicas, LoadMeters(), none) == dict.fromkeys(
        ("i2", "i3", "i6"), "pool.replicas is 0"
    )
    assert over(there, {InstanceId("i2"): "load"}, quiet, two) == {"i2": little}
    assert over(there, {}, quiet, none) == {}


def test_meters_follow_the_seconds_of_load_and_quiet() -> None:
    much, little = ModelLoad(1, ROWS), ModelLoad(1, 0)
    meters = LoadMeters()
    seen: list[tuple[float, float]] = []
    for now, load in (
        (5.0, much), (6.0, much), (16.0, much), (16.5, little), (18.5, little), (40.0, little),
        (41.0, much),
    ):  # fmt: skip
        meters.look({A: load}, TWO_ROWS, now)
        seen.append((meters.heavy_s[A], meters.light_s[A]))
    assert seen == [
        (0.0, 0.0), (1.0, 0.0), (3.0, 0.0), (2.5, 0.5), (0.5, 2.5), (0.0, 4.5), (1.0, 3.5),
    ]  # fmt: skip
    for step in range(30):
        meters.look({A: much}, TWO_ROWS, 42.0 + step)
    assert (meters.heavy_s[A], meters.light_s[A]) == (AFTER_S, 0.0)
    meters.changed(A)
    assert not meters.heavy_s and not meters.light_s


def test_a_replica_that_fails_pauses_its_model_and_no_other_copy_does() -> None:
    for gone, paused in (
        (ready("i1", "load"), True), (some_copy("i1", "load"), True), (ready("i1"), False),
        (ready("i1", "load", status="draining"), False),
    ):  # fmt: skip
        meters = LoadMeters({A: 1.0, B: 2.0}, {A: 3.0, B: 4.0})
        meters.removed(gone, 100.0)
        assert (meters.heavy_s, meters.light_s) == ({B: 2.0}, {B: 4.0})
        assert meters.paused_until == ({A: 700.0} if paused else {})
    meters = LoadMeters(paused_until={A: 7.0, B: 7.5})
    meters.look({}, TWO_ROWS, 7.0)
    assert meters.paused_until == {B: 7.5}
    meters.recall({A: 7.0, B: 7.5}, 7.0)
    assert meters.paused_until == {B: 7.5}
