"""Where a model or a lease goes, and who leaves for it, by what it costs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.topology import LinkCost
from master.placement import Links, NodeCapacity, PlacementSpec, RunnerSizing
from master.placement.memory_cost import layer_costs
from master.pool import (
    ROOM_RETRY_S,
    Copy,
    CopyUse,
    Hopeless,
    PoolChoice,
    Victim,
    Yielding,
    choose,
    choose_room,
    victim,
)
from master.pool.choice import cheapest
from tests.harness.placement_nodes import GB, MODEL, model, node

CARD = model()
NEED = layer_costs(CARD, None, "mlx-metal").whole.total
N1, N2 = NodeId("n1"), NodeId("n2")
NOW = 50.0


def held(name: str, gigabytes: int, *nodes: NodeId, **fields: Any) -> Instance:
    shards = tuple(
        Shard(rank=n, node=one, first_layer=n, last_layer=n + 1, bytes_reserved=gigabytes * GB)
        for n, one in enumerate(nodes or (N1,))
    )
    return Instance(
        instance=InstanceId(name), model=ModelId(f"m{name}"), shards=shards, context_tokens=8,
        keep_alive_s=1.0, **{"status": "ready", **fields},
    )  # fmt: skip


def leaves(name: str, cost_s: float, gigabytes: int, *nodes: NodeId, ever: bool = True) -> Victim:
    copy = Copy(held(name, gigabytes, *nodes), None, 0.0, 1.0)
    return Victim(copy, Yielding(NOW if ever else math.inf, ever=ever), cost_s)


def full(number: int, *models: Any, usable: int = 16 * GB, shards: int = 1) -> NodeCapacity:
    """A node whose memory copies have, all of it."""
    return node(
        number, usable=usable, free_bytes=0, reserved_bytes=usable, shards=shards, models=models
    )  # fmt: skip


def chosen(
    nodes: list[NodeCapacity], *candidates: Victim, links: Links | None = None, **spec: Any
) -> PoolChoice | Refusal | Hopeless:
    return choose(
        PlacementSpec(MODEL, **spec), nodes, RunnerSizing(), links or Links(), candidates,
        unpromised=nodes, everyone=candidates,
    )  # fmt: skip


def names(found: Any) -> list[str]:
    assert isinstance(found, PoolChoice), found
    return [one.copy.instance.instance for one in found.victims]


def used(idle_s: float) -> CopyUse:
    return CopyUse(0, idle_s, None, NOW, idle_s)


@pytest.mark.parametrize(
    ("fields", "use", "load_s", "given", "cost_s"),
    [
        ({}, used(0.0), 8.0, Yielding(NOW, idle=True), 8.0),
        ({}, used(60.0), 8.0, Yielding(NOW, idle=True), 4.0),
        ({}, used(180.0), 8.0, Yielding(NOW, idle=True), 2.0),
        ({}, None, 8.0, Yielding(NOW, idle=True), 8.0),
        ({}, used(60.0), 8.0, Yielding(NOW), 8.0),
        ({}, used(60.0), 8.0, Yielding(NOW + 10), 18.0),
        ({}, used(0.0), 8.0, Yielding(NOW - 10), 8.0),
        ({}, used(0.0), 0.0, Yielding(NOW, idle=True), 0.001),
        ({}, used(0.0), 8.0, Yielding(math.inf), 608.0),
        ({"status": "placed"}, None, 8.0, Yielding(math.inf), 38.0),
        ({}, used(0.0), 8.0, Yielding(NOW + 10, leaves=True), 0.0),
        ({"replica": "load"}, used(0.0), 8.0, Yielding(NOW), 0.0),
        ({"replica": "load"}, used(0.0), 8.0, Yielding(NOW - 1), 0.0),
        ({"replica": "load"}, used(0.0), 8.0, Yielding(NOW + 10), 18.0),
    ],
)
def test_what_leaving_costs_is_loading_again_and_waiting_for_it(
    fields: dict[str, Any], use: CopyUse | None, load_s: float, given: Yielding, cost_s: float
) -> None:
    copy = Copy(held("a", 1, **fields), use, 0.0, load_s, replica=fields.get("replica", ""))
    assert victim(copy, given, NOW) == Victim(copy, given, cost_s)


def test_of_sets_that_cost_the_same_the_smallest_leaves_and_copies_elsewhere_do_not_count() -> None:
    there = [leaves("b", 1.0, 4), leaves("c", 2.0, 4), leaves("a", 3.0, 8), leaves("d", 0.1, 9, N2)]
    found = cheapest(full(1), 8 * GB, there)
    assert found is not None and [one.copy.instance.instance for one in found] == ["a"]
    assert cheapest(full(1), 8 * GB, there[:2]) == there[:2]
    assert cheapest(full(1), 8 * GB + 1, there[:2]) is None


def test_a_runner_slot_is_as_needed_as_memory_but_for_a_lease() -> None:
    no_slot = node(1, shards=4)
    a = leaves("a", 1.0, 1)
    assert cheapest(no_slot, 1, [a]) == [a] and cheapest(no_slot, 1, []) is None
    assert cheapest(no_slot, 1, [a], slots=0) == []
    assert cheapest(node(1, shards=3), 1, [a]) == []


def test_of_many_copies_on_a_node_the_ten_cheapest_are_tried() -> None:
    many = [leaves(f"i{n}", float(n), 1) for n in range(12)]
    assert cheapest(full(1), 10 * GB, many[::-1]) == many[:10]
    assert cheapest(full(1), 11 * GB, many) is None


def test_where_there_is_room_nobody_leaves() -> None:
    found = chosen([node(1, models=(CARD,)), full(2, CARD)], leaves("b", 0.0, 16, N2))
    assert isinstance(found, PoolChoice) and found.placement is not None
    assert (found.needs, found.victims, found.refusal) == ({N1: NEED}, (), None)
    assert found.cost_s == 0.0


@pytest.mark.parametrize(("a_s", "b_s", "leaving"), [(1.0, 3.0, "a"), (3.0, 1.0, "b")])
def test_the_node_is_chosen_by_who_would_leave_it(a_s: float, b_s: float, leaving: str) -> None:
    a, b = leaves("a", a_s, 16), leaves("b", b_s, 16, N2)
    found = chosen([full(1, CARD), full(2, CARD)], a, b)
    assert names(found) == [leaving] and isinstance(found, PoolChoice)
    assert found.needs == {N1 if leaving == "a" else N2: NEED}
    assert (found.cost_s, found.placement) == (1.0, None)
    assert found.refusal is not None and found.refusal.reason == "no_capacity"


@pytest.mark.parametrize(("a_s", "leaving", "cost_s"), [(80.0, "a", 80.0), (82.0, "b", 81.0)])
def test_weights_that_have_to_come_first_cost_their_time(
    a_s: float, leaving: str, cost_s: float
) -> None:
    """8 GB at 100 MB/s."""
    a, b = leaves("a", a_s, 16), leaves("b", 1.0, 16, N2)
    found = chosen([full(1, CARD), full(2)], a, b)
    assert names(found) == [leaving] and isinstance(found, PoolChoice)
    assert found.cost_s == cost_s


@pytest.mark.parametrize("spec", [{}, {"layers": {"n2": 8}}], ids=str)
def test_a_model_that_goes_on_one_node_by_force_or_by_itself_counts_its_fetch(
    spec: dict[str, Any],
) -> None:
    """The node that has it is too small for it."""
    b, c = leaves("b", 1.0, 16, N2), leaves("c", 2.0, 16, NodeId("n3"))
    small = node(1, usable=2 * GB, models=(CARD,))
    found = chosen([small, full(2), full(3)], b, c, **spec)
    assert names(found) == ["b"] and isinstance(found, PoolChoice)
    assert found.cost_s == (1.0 if spec else 81.0)


def test_a_group_that_only_more_copies_than_are_tried_make_room_for_waits() -> None:
    large = model((2 * GB,) * 8, kv=10)
    nodes = [full(n, large, usable=12 * GB, shards=0) for n in (1, 2)]
    for gigabytes, waits in ((2, False), (1, True)):
        many = [
            leaves(f"{one}{n}", 1.0, gigabytes, one) for one in (N1, N2) for n in range(12)
        ]  # fmt: skip
        found = chosen(nodes, *many, min_nodes=2)
        assert isinstance(found, Refusal) == waits


@pytest.mark.parametrize(
    "spec", [{"min_nodes": 2}, {"sharding": "tensor"}, {"layers": {"n1": 4, "n2": 4}}], ids=str
)
def test_a_model_for_more_nodes_has_copies_leave_on_each_and_on_no_single_one(
    spec: dict[str, Any],
) -> None:
    a, b = leaves("a", 3.0, 16), leaves("b", 1.0, 16, N2)
    found = chosen([full(1, CARD), full(2, CARD)], a, b, **spec)
    assert names(found) == ["b", "a"] and isinstance(found, PoolChoice)
    assert set(found.needs) == {N1, N2} and max(found.needs.values()) < NEED
    assert (found.cost_s, found.placement) == (4.0, None) and found.refusal is not None
    both = leaves("c", 2.0, 16, N1, N2)
    found = chosen([full(1, CARD), full(2, CARD)], both, leaves("d", 1.0, 0, N2), **spec)
    assert names(found) == ["c"] and isinstance(found, PoolChoice)
    assert found.cost_s == 2.0, "it leaves once"
    free = [node(n, models=(CARD,)) for n in (1, 2)]
    found = chosen(free, **spec)
    assert isinstance(found, PoolChoice) and found.placement is not None and len(found.needs) == 2
    unmet = chosen([full(1, CARD), full(2, CARD)], a, **spec)
    assert isinstance(unmet, Refusal)


@pytest.mark.parametrize(("a_s", "splits"), [(1e-3, False), (1e9, True)])
def test_a_split_that_fits_now_is_weighed_against_a_copy_that_would_leave(
    a_s: float, splits: bool
) -> None:
    half = {"usable": 16 * GB, "free_bytes": 8 * GB, "reserved_bytes": 8 * GB, "shards": 1}
    nodes = [node(n, models=(CARD,), **half) for n in (1, 2)]
    slow = LinkCost(2e-3, 1e8)
    links = Links({N1: {N2: slow}, N2: {N1: slow}})
    found = chosen(nodes, leaves("a", a_s, 8), links=links)
    assert isinstance(found, PoolChoice) and found.refusal is None
    if not splits:
        assert (names(found), found.cost_s) == (["a"], a_s)
        return
    placed = found.placement
    assert placed is not None and len(placed.ranks) == 2 and not found.victims
    assert found.needs == {rank.copy.node.id: rank.need.total for rank in placed.ranks}
    alone_s = sum(rank.read_s for rank in placed.ranks)
    assert placed.token_s > alone_s
    assert found.cost_s == pytest.approx(5.0 + 60.0 * (placed.token_s - alone_s) / alone_s)


def test_a_split_costs_something_where_it_is_as_fast_as_one_node() -> None:
    half = {"usable": 16 * GB, "free_bytes": 8 * GB, "reserved_bytes": 8 * GB, "shards": 1}
    nodes = [node(n, models=(CARD,), **half) for n in (1, 2)]
    fast = LinkCost(0.0, 1e15)
    links = Links({N1: {N2: fast}, N2: {N1: fast}})
    split = chosen(nodes, links=links)
    assert isinstance(split, PoolChoice) and split.placement is not None
    assert 5.0 <= split.cost_s < 5.9
    assert names(chosen(nodes, leaves("a", 4.0, 8), links=links)) == ["a"]
    assert names(chosen(nodes, leaves("a", 7.0, 8), links=links)) == []


def test_only_where_pins_alone_are_in_its_way_a_wait_is_in_vain() -> None:
    a, b = leaves("a", 1.0, 16, ever=False), leaves("b", 1.0, 16, N2, ever=False)
    nodes = [full(1, CARD), full(2, CARD)]
    found = chosen(nodes, b, a)
    assert isinstance(found, Hopeless) and found.refusal.retry_after_s is None
    assert found.refusal.facts["pinned"] == ["ma", "mb"]
    assert found.refusal.message.endswith("; pinned models take the memory: ma, mb; unpin one")
    taken, spec = leaves("b", 1.0, 16, N2), PlacementSpec(MODEL)
    later = choose(
        spec, nodes, RunnerSizing(), Links(), [a], unpromised=nodes, everyone=[a, taken]
    )  # fmt: skip
    assert isinstance(later, Refusal) and later.retry_after_s, "b leaves for another first"
    empty = choose(spec, nodes, RunnerSizing(), Links(), [], unpromised=nodes, everyone=[])
    assert isinstance(empty, Refusal) and empty.retry_after_s, "what is full is none of ours"
    never = chosen([node(1, models=(model((9 * GB,) * 8),))], a)
    assert isinstance(never, Refusal) and never.retry_after_s is None


# --- room for something other than a model -----------------------------------------------------


def room(
    gigabytes: int, nodes: list[NodeCapacity], *candidates: Victim, everyone: Any = None
) -> PoolChoice | Refusal | Hopeless:
    return choose_room(
        gigabytes * GB, nodes, candidates, unpromised=nodes, everyone=everyone or candidates
    )  # fmt: skip


def test_a_lease_goes_where_nobody_leaves_and_there_to_the_freest_node() -> None:
    nodes = [node(1, usable=9 * GB), node(2, usable=20 * GB), node(3, usable=12 * GB)]
    cheap = leaves("a", 0.5, 16, N1)
    assert room(8, nodes, cheap) == PoolChoice({N2: 8 * GB})
    found = room(8, nodes)
    assert isinstance(found, PoolChoice) and (found.cost_s, found.load_s) == (0.0, 0.0)
    assert room(8, [nodes[0], nodes[2]]) == PoolChoice({NodeId("n3"): 8 * GB})
    no_slot = node(1, shards=4)
    assert room(8, [no_slot]) == PoolChoice({N1: 8 * GB}), "it takes no runner"


def test_for_a_lease_the_cheapest_copies_leave() -> None:
    nodes = [full(1), full(2)]
    a, b, c = leaves("a", 2.0, 16), leaves("b", 1.0, 8, N2), leaves("c", 0.5, 8, N2)
    found = room(16, nodes, a, b, c)
    assert names(found) == ["c", "b"] and isinstance(found, PoolChoice)
    assert (found.needs, found.cost_s) == ({N2: 16 * GB}, 1.5)
    assert found.refusal is not None and found.refusal.retry_after_s == ROOM_RETRY_S
    assert found.refusal.message == "no node has 16.00 GB available: box1 0.00 GB, box2 0.00 GB"
    assert found.refusal.facts == {
        "size_bytes": 16 * GB, "usable_bytes": {"box1": 0, "box2": 0},
    }  # fmt: skip
    same = replace(a, cost_s=1.5)
    assert names(room(16, nodes, same, b, c)) == ["a"], "one instead of two"
    pinned = leaves("a", 0.1, 16, ever=False)
    assert names(room(16, nodes, pinned, b, c)) == ["c", "b"]


def test_a_lease_that_no_node_can_hold_is_refused_for_ever() -> None:
    nodes = [node(1, usable=9 * GB), node(2, usable=20 * GB), node(3, free_bytes=None)]
    assert isinstance(room(20, nodes), PoolChoice)
    found = room(21, nodes, leaves("a", 1.0, 1))
    assert isinstance(found, Refusal)
    assert (found.reason, found.field, found.retry_after_s) == (
        "insufficient_memory", "size_bytes", None,
    )  # fmt: skip
    assert found.message == (
        "too much memory: 21.00 GB; the largest limit is 20.00 GB on box2"
    )  # fmt: skip
    assert set(found.facts["usable_bytes"]) == {"box1", "box2"}
    assert room(21, nodes, leaves("a", 1.0, 1, ever=False)) == found, "no pin is in its way"
    unmeasured = room(21, nodes[2:])
    assert isinstance(unmeasured, Refusal) and unmeasured.reason == "pending"
    assert unmeasured.retry_after_s


def test_a_lease_waits_in_vain_only_for_pins() -> None:
    a, b = leaves("a", 1.0, 16, ever=False), leaves("b", 1.0, 16, N2)
    nodes = [full(1), full(2)]
    found = room(16, nodes[:1], a)
    assert isinstance(found, Hopeless) and found.refusal.facts["pinned"] == ["ma"]
    later = room(16, nodes, a, everyone=[a, b])
    assert isinstance(later, Refusal) and later.retry_after_s, "b leaves for another first"
    found = room(16, nodes, a, everyone=[a])
    assert isinstance(found, Hopeless)
    empty = room(16, nodes)
    assert isinstance(empty, Refusal) and empty.retry_after_s
