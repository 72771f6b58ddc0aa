"""What is promised, against what there is; and who leaves, against brute force."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.cards import NodeCard
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.readings import NodeReading
from master.placement import NodeCapacity
from master.pool import Copy, Promise, Victim, Yielding, holds_by_sum, reserve
from master.pool.choice import cheapest
from master.pool.ledger import without

GB = 10**9
N = NodeId("n")


def node(gigabytes: float, reserved: float, shards: int, free: float | None = None) -> NodeCapacity:
    card = NodeCard(
        node=N, name="n", platform="linux", cores=1, memory_bytes=int(gigabytes / 0.75 * GB),
        backends=("mlx-cpu",), mlx_version="", shoal_version="", slots=6, announced_at_s=0.0,
    )  # fmt: skip
    available = int((gigabytes - reserved if free is None else free) * GB)
    reading = NodeReading(
        node=N, memory_total_bytes=int(2 * gigabytes * GB), memory_available_bytes=available,
        cpu_ratio=0, load_1m=0, disk_total_bytes=1, disk_free_bytes=1, measured_at_s=0,
    )  # fmt: skip
    return NodeCapacity(card, reading, int(reserved * GB), 0, shards)


def held(number: int, gigabytes: float) -> Instance:
    shard = Shard(rank=0, node=N, first_layer=0, last_layer=1, bytes_reserved=int(gigabytes * GB))
    return Instance(
        instance=InstanceId(f"i{number}"), model=ModelId(f"m{number}"), shards=(shard,),
        status="ready", context_tokens=8, keep_alive_s=1.0,
    )  # fmt: skip


sizes = st.lists(st.integers(1, 8), min_size=0, max_size=5)


@given(sizes, st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_promises_never_exceed_what_there_is_when_each_is_given_what_is_left(
    copies: list[int], wants: list[int]
) -> None:
    there = [held(number, size) for number, size in enumerate(copies)]
    bare = node(24, sum(copies), len(copies))
    promises: list[Promise] = []
    left = list(there)
    for number, want in enumerate(wants):
        (now,) = reserve([bare], promises)
        candidates = [Victim(Copy(i, None, 0.0, 1.0), Yielding(0.0), 1.0) for i in left]
        victims = cheapest(now, want * GB, candidates)
        if victims is None:
            continue
        gone = tuple(one.copy.instance for one in victims)
        left = [one for one in left if one not in gone]
        promises.append(Promise(ModelId(f"w{number}"), {N: want * GB}, gone))
    promised = sum(one.needs[N] for one in promises)
    staying = sum(one.shards[0].bytes_reserved for one in left)
    assert promised + staying <= bare.ceiling_bytes


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 9)), max_size=6),
    st.integers(1, 24),
    st.integers(0, 6),
)
def test_the_cheapest_set_that_is_enough_leaves_and_nobody_more(
    copies: list[tuple[int, int]], need: int, free: int
) -> None:
    there = [held(number, size) for number, (size, _) in enumerate(copies)]
    used = sum(size for size, _ in copies)
    here = node(used + free, used, len(copies), free=free)
    candidates = [
        Victim(Copy(one, None, 0.0, 1.0), Yielding(0.0), 1.0 + cost)
        for one, (_, cost) in zip(there, copies, strict=True)
    ]
    chosen = cheapest(here, need * GB, candidates)
    enough = [
        subset
        for size in range(len(candidates) + 1)
        for subset in combinations(candidates, size)
        if (room := without(here, [one.copy.instance for one in subset])).has_slot
        and room.usable_bytes >= need * GB
    ]
    assert (chosen is None) == (not enough)
    if chosen is not None:
        assert sum(one.cost_s for one in chosen) == min(
            sum(one.cost_s for one in subset) for subset in enough
        )
        for one in chosen:
            rest = [other for other in chosen if other is not one]
            room = without(here, [other.copy.instance for other in rest])
            assert not (room.has_slot and room.usable_bytes >= need * GB), f"{one} left in vain"


def test_what_victims_leave_covers_a_promise_and_only_the_rest_is_taken() -> None:
    there = [held(0, 4), held(1, 3)]
    bare = node(24, 7, 2)
    for need, rest in ((5, 0), (7, 0), (9, 2)):
        (now,) = reserve([bare], [Promise(ModelId("w"), {N: need * GB}, tuple(there))])
        assert now.reserved_bytes == bare.reserved_bytes + rest * GB
        assert now.loading_bytes == bare.loading_bytes + rest * GB
        assert now.shards == bare.shards, "it has a slot of those that leave"


def test_what_is_promised_is_taken_of_each_node_once_and_of_its_machine() -> None:
    """On one machine are n and o; p is another one's."""
    here, beside, other = capacity("n", "mac"), capacity("o", "mac"), capacity("p")
    victims = (held(0, 4), held(1, 3))
    promises = [
        Promise(ModelId("covered"), {N: 6 * GB}, victims),
        Promise(ModelId("more"), {N: 2 * GB, NodeId("p"): 3 * GB}),
        Promise(ModelId("lease"), {N: 1 * GB}, slots=0),
    ]
    found = reserve([here, beside, other], promises)
    taken = [
        (now.reserved_bytes - 9 * GB, now.loading_bytes - 1 * GB, now.shards - 3) for now in found
    ]
    assert taken == [(3 * GB, 3 * GB, 1), (0, 3 * GB, 0), (3 * GB, 3 * GB, 1)]
    assert reserve([other], [Promise(ModelId("w"), {N: 5})]) == [other], "n is not heard of"
    assert reserve([here, beside, other], []) == [here, beside, other]


@pytest.mark.parametrize(
    ("reserved", "shards", "need", "slots", "holds"),
    [
        (20, 5, 4, 1, True), (20, 6, 4, 1, False), (20, 6, 4, 0, True), (20, 0, 5, 1, False),
        (0, 0, 24, 1, True), (0, 0, 25, 1, False),
    ],
)  # fmt: skip
def test_a_promise_holds_up_to_the_last_byte_and_slot(
    reserved: int, shards: int, need: int, slots: int, holds: bool
) -> None:
    promise = Promise(ModelId("w"), {N: need * GB}, slots=slots)
    full_by_measure = node(24, reserved, shards, free=0)
    assert holds_by_sum(promise, [full_by_measure], []) == holds
    on_both = Promise(ModelId("w"), {N: need * GB, NodeId("p"): 1}, slots=slots)
    assert holds_by_sum(on_both, [full_by_measure, capacity("p")], []) == holds
    assert not holds_by_sum(on_both, [full_by_measure], []), "p is gone"


def test_a_promise_holds_with_what_its_own_victims_leave_and_not_with_those_of_another() -> None:
    full, victims = node(24, 24, 6), (held(0, 4), held(1, 3))
    promise = Promise(ModelId("w"), {N: 7 * GB}, victims)
    others = Promise(ModelId("x"), {N: 1}, victims[1:])
    assert holds_by_sum(promise, [full], [Promise(ModelId("x"), {N: 1}, (held(2, 1),))])
    assert not holds_by_sum(promise, [full], [others])
    assert not holds_by_sum(Promise(ModelId("w"), {N: 7 * GB + 1}, victims), [full], [])


def test_what_copies_leave_is_free_and_no_more_than_there_is() -> None:
    now = without(node(24, 10, 3, free=5), [held(0, 4), held(1, 3)])
    assert now.reading is not None
    assert (now.reserved_bytes, now.shards) == (3 * GB, 1)
    assert now.reading.memory_available_bytes == 12 * GB
    emptied = without(node(4, 1, 1, free=5), [held(0, 4), held(1, 3)])
    assert emptied.reading is not None and emptied.reading.memory_available_bytes == 8 * GB
    assert (emptied.reserved_bytes, emptied.shards) == (0, 0)
    same, elsewhere = node(24, 10, 3), [held(0, 4).model_copy(update={"shards": ()})]
    assert without(same, elsewhere) == same
    unmeasured = without(NodeCapacity(same.card, None, 10 * GB, 0, 3), [held(0, 4)])
    assert (unmeasured.reading, unmeasured.reserved_bytes) == (None, 6 * GB)


def capacity(name: str, machine: str = "") -> NodeCapacity:
    """A node of that name with 9 GB reserved, of which 1 GB is loading still, and three shards."""
    one = node(24, 9, 3)
    card = one.card.model_copy(update={"node": NodeId(name), "machine": machine})
    return NodeCapacity(card, one.reading, 9 * GB, 1 * GB, 3)
