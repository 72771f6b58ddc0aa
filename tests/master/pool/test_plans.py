"""What is done at each instant for a model that waits: one step of its plan, and what it waits
for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bus.replica.state import ClusterState
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.events import EventBody, InstanceDraining, InstanceYields
from master.pool import (
    Claim,
    Copy,
    CopyUse,
    PlanBook,
    PoolChoice,
    PoolPlan,
    Promise,
    Tenure,
    Victim,
    Yielding,
)

N, P, WANTED, NOW = NodeId("n"), NodeId("p"), ModelId("wanted"), 100.0
MAKES_WAY = "evicted for wanted"


def victim(name: str, given: Yielding, *nodes: NodeId, use: Any = None, **fields: Any) -> Victim:
    shards = tuple(
        Shard(rank=n, node=node, first_layer=n, last_layer=n + 1, bytes_reserved=1)
        for n, node in enumerate(nodes or (N,))
    )
    instance = Instance(
        instance=InstanceId(name), model=ModelId(f"m{name}"), shards=shards, context_tokens=8,
        keep_alive_s=1.0, **{"status": "ready", **fields},
    )  # fmt: skip
    return Victim(Copy(instance, use, 0.0, 1.0), given, 1.0)


def claim(priority: int = 10, kind: str = "demand") -> Claim:
    return Claim(WANTED, ((priority, 90.0),), kind)


def pursued(
    *victims: Victim,
    claims: Claim | None = None,
    unsettled: frozenset[NodeId] = frozenset(),
    tenure: Tenure | None = None,
    nodes: tuple[NodeId, ...] = (N,),
) -> tuple[list[EventBody], PoolPlan]:
    """The events of one step, and the plan then."""
    book, needs = PlanBook(), dict.fromkeys(nodes, 5)
    choice = PoolChoice(needs, victims, load_s=7.0)
    found = book.pursue(claims or claim(), choice, tenure or Tenure(), unsettled, NOW)
    return found, book.plans[WANTED]


def drains(name: str) -> InstanceDraining:
    return InstanceDraining(instance=InstanceId(name), deadline_s=3600.0, why=MAKES_WAY)


def yields(name: str, *, urgently: bool = False) -> InstanceYields:
    return InstanceYields(
        instance=InstanceId(name), to=WANTED, why=MAKES_WAY, urgently=urgently
    )  # fmt: skip


IDLE, NOW_BUSY = Yielding(NOW, idle=True), Yielding(NOW, "x finishes")
LEAVES = Yielding(NOW, "y leaves", leaves=True)
SOON, LATER, NEVER = Yielding(NOW + 1, "soon"), Yielding(NOW + 5, "later"), Yielding(math.inf, "no")


def test_the_cheapest_leaves_first_alone_and_one_in_use_is_told_to_yield() -> None:
    found, plan = pursued(victim("a", IDLE), victim("b", NOW_BUSY))
    assert found == [drains("a")]
    assert (plan.phase, plan.why, plan.until_at) == ("evicting", "ma is being evicted", NOW)
    assert pursued(victim("b", NOW_BUSY), victim("a", IDLE))[0] == [yields("b")]
    urgent = pursued(victim("b", NOW_BUSY), claims=claim(1))[0]
    assert urgent == [yields("b", urgently=True)]


def test_none_leaves_before_all_may_and_it_is_said_when_that_is() -> None:
    found, plan = pursued(victim("a", IDLE), victim("b", LATER), victim("c", SOON))
    assert (found, plan.phase) == ([], "waiting")
    assert (plan.why, plan.until_at) == ("later; soon", NOW + 5)
    found, plan = pursued(victim("a", SOON), victim("b", NEVER))
    assert (found, plan.why, plan.until_at) == ([], "soon; no", None)


def test_a_node_that_one_leaves_or_that_is_measured_loses_no_other() -> None:
    leaving = victim("b", LEAVES, yields_to="wanted")
    found, plan = pursued(victim("a", IDLE), leaving, victim("c", LATER))
    assert (found, plan.phase, plan.why, plan.until_at) == ([], "evicting", "y leaves", None)
    found, plan = pursued(victim("a", IDLE), victim("c", NEVER), unsettled=frozenset({N}))
    assert (found, plan.phase, plan.until_at) == ([], "settling", NOW)
    assert plan.why == "the freed memory is being measured"
    found, plan = pursued(unsettled=frozenset({P}))
    assert (found, plan.phase, plan.why) == ([], "waiting", "no memory is free at the moment")


def test_each_node_of_a_group_goes_on_by_itself() -> None:
    both, there = victim("a", IDLE, N, P), victim("b", IDLE, P)
    found, plan = pursued(both, there, nodes=(N, P))
    assert (found, plan.why) == ([drains("a")], "ma is being evicted"), "it is told once"
    found, plan = pursued(victim("a", IDLE, N), there, nodes=(N, P))
    assert (found, plan.why) == (
        [drains("a"), drains("b")],
        "ma is being evicted; mb is being evicted",
    )
    measured = frozenset({N})
    found, plan = pursued(there, nodes=(N, P), unsettled=measured)
    assert (found, plan.phase) == ([drains("b")], "evicting")
    found, plan = pursued(there, nodes=(P, N), unsettled=measured)
    assert (found, plan.phase) == ([drains("b")], "evicting")
    stays, held = victim("c", NEVER, N), victim("d", SOON, P)
    for nodes in ((N, P), (P, N)):
        assert pursued(stays, held, nodes=nodes)[1].until_at is None
        assert pursued(victim("c", LEAVES, N), held, nodes=nodes)[1].until_at is None


def used(open_requests: int, heard_at: float) -> CopyUse:
    return CopyUse(open_requests, 0.0, None, heard_at, 0.0)


@pytest.mark.parametrize(
    ("use", "fields", "priority", "found"),
    [
        (used(0, 20.5), {}, 10, [drains("a")]),
        (used(0, 20.4), {}, 10, []),
        (used(1, 99.0), {}, 10, []),
        (None, {}, 10, []),
        (used(0, 99.0), {"status": "draining"}, 10, []),
        (used(1, 99.0), {"yields_to": "other"}, 10, [yields("a")]),
        (None, {"yields_to": "other"}, 10, [yields("a")]),
        (used(0, 99.0), {"yields_to": "other"}, 10, [yields("a"), drains("a")]),
        (used(1, 99.0), {}, 1, [yields("a", urgently=True)]),
        (used(1, 99.0), {"yields_urgently": True}, 1, []),
        (used(1, 99.0), {"yields_urgently": True}, 10, []),
    ],
)
def test_a_copy_that_yields_is_unloaded_when_gateways_know_it_and_it_is_empty(
    use: CopyUse | None, fields: dict[str, Any], priority: int, found: list[EventBody]
) -> None:
    one = victim("a", LEAVES, use=use, **{"yields_to": "wanted", **fields})
    tenure = Tenure(yields_at={InstanceId("a"): 20.0})
    assert pursued(one, claims=claim(priority), tenure=tenure)[0] == found


def test_a_new_holder_counts_from_when_it_finds_a_copy_that_yields() -> None:
    tenure, one = Tenure(), victim("a", LEAVES, use=used(0, NOW), yields_to="wanted")
    assert pursued(one, tenure=tenure)[0] == []
    assert tenure.yields_at == {"a": NOW}


def test_what_a_load_took_last_is_what_it_takes() -> None:
    assert pursued(victim("a", IDLE))[1].load_s == 7.0
    assert pursued(victim("a", IDLE), tenure=Tenure(load_s={WANTED: 3.0}))[1].load_s == 3.0


def test_a_plan_promises_its_bytes_and_the_victims_that_are_still_there() -> None:
    a, b = victim("a", IDLE), victim("b", IDLE)
    _, plan = pursued(a, b)
    state = ClusterState(instances={"b": b.copy.instance})
    assert plan.promise(state) == Promise(WANTED, {N: 5}, (b.copy.instance,), 1)
    book = PlanBook(plans={WANTED: plan})
    assert book.promises_beside(WANTED, state) == ()
    assert book.promises_beside(None, state) == (plan.promise(state),)
    assert book.promises_beside(ModelId("x"), state) == (plan.promise(state),)


def test_what_no_plan_needs_to_yield_any_more_stays() -> None:
    kept = victim("a", LEAVES, yields_to="wanted").copy.instance
    dropped = kept.model_copy(update={"instance": InstanceId("b")})
    others = [
        kept.model_copy(update={"instance": InstanceId(name), **change})
        for name, change in (("c", {"status": "draining"}), ("d", {"yields_to": ""}))
    ]
    state = ClusterState(instances={o.instance: o for o in (kept, dropped, *others)})
    _, plan = pursued(victim("a", LEAVES, yields_to="wanted"), victim("b", IDLE))
    book = PlanBook(plans={WANTED: plan})
    why = "the model that needed its memory is no longer requested"
    assert book.withdrawn(state) == [InstanceYields(instance=InstanceId("b"), why=why)]
    book.begin()
    assert [o.instance for o in book.withdrawn(state) if isinstance(o, InstanceYields)] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    ("measured_at", "now", "settled"),
    [
        (0.0, 50.0, False), (50.24, 50.3, False), (50.25, 50.3, True), (49.0, 51.9, False),
        (49.0, 52.0, True), (-math.inf, 52.0, True),
    ],
)  # fmt: skip
def test_a_node_is_measured_a_quarter_of_a_second_after_or_counts_so_after_two(
    measured_at: float, now: float, settled: bool
) -> None:
    tenure = Tenure()
    tenure.removed(InstanceId("a"), [N], 50.0)
    assert tenure.is_settled(N, measured_at, now) == settled
    assert tenure.unsettled([N, P], lambda _: measured_at, now) == (set() if settled else {N})


def test_how_long_a_copy_took_to_load_is_kept_when_it_is_gone() -> None:
    tenure, a, m = Tenure(), InstanceId("a"), ModelId("m")
    tenure.ready(a, m, 10.0)
    assert (tenure.load_s, tenure.ready_at) == ({}, {a: 10.0}), "when it began is not known"
    tenure.placed(a, 20.0)
    assert not tenure.ready_at, "it loads anew"
    tenure.ready(a, m, 23.0)
    tenure.ready(a, m, 29.0)
    assert (tenure.load_s, tenure.ready_at, tenure.placed_at) == ({m: 3.0}, {a: 29.0}, {})
    tenure.yields_at[a] = 30.0
    tenure.removed(a, [N, P], 40.0)
    assert not (tenure.ready_at or tenure.yields_at or tenure.placed_at)
    assert (tenure.left_at, tenure.load_s) == ({N: 40.0, P: 40.0}, {m: 3.0})
