"""What is promised, against what there is; and who leaves, against brute force."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.cards import NodeCard
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.readings import NodeReading
from master.placement import NodeCapacity
from master.pool import Copy, Promise, Victim, Yielding, reserve
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
