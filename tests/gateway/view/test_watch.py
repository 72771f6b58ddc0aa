"""Snapshots of the cluster: what they are made of, when they are made, and who is given them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bus.links.reactor import AsyncioReactor
from bus.replica.state import ClusterState, NodeSeat
from bus.wire.accelerators import AcceleratorReading, HardwareReading
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankReady, Shard
from bus.wire.messages.readings import (
    ClassDemand,
    DemandReading,
    ModelDemand,
    NodeReading,
    RunnerReading,
    ThunderboltReading,
)
from bus.wire.pool.leases import Lease, LeaseId
from gateway.view.counters import HistogramTotals, NodeTotals
from gateway.view.readings import ClusterReadings
from gateway.view.watch import (
    ClusterSeen,
    FeedBounds,
    FeedFull,
    SnapshotFeed,
    memory_of,
    queue_of,
    snapshot_of,
)

NONE = HistogramTotals((), (), 0.0)
TOTALS = NodeTotals(
    {"stop": 3}, 30, 60, 1, HistogramTotals((0.1, float("inf")), (2, 1), 0.7), NONE, NONE
)
QUICK = FeedBounds(every_s=0.05, slow_s=0.2, readers=2)


def node_reading(node: str, free: int) -> NodeReading:
    return NodeReading(
        node=NodeId(node),
        memory_total_bytes=1000,
        memory_available_bytes=free,
        cpu_ratio=0.5,
        load_1m=1.0,
        disk_total_bytes=10,
        disk_free_bytes=5,
        measured_at_s=0.0,
    )


def runner_reading(node: str, rank: int, generation: int = 1) -> RunnerReading:
    return RunnerReading(
        node=NodeId(node),
        process="runner:00",
        instance=InstanceId("i"),
        model=ModelId("m"),
        generation=generation,
        phase="ready",
        running=2,
        waiting=1,
        max_running=8,
        max_waiting=8,
        best_waiting_priority=None,
        prompt_tokens=0,
        generation_tokens=0,
        prompt_tokens_per_s=4.0,
        generation_tokens_per_s=7.0,
        kv_bytes=20,
        kv_limit_bytes=100,
        prefix_bytes=0,
        prefix_hits=0,
        prefix_hit_tokens=0,
        preemptions=0,
        active_bytes=50 + rank,
        peak_bytes=60,
        step=1,
        step_ms=1.0,
        last_used_ago_s=0.0,
        rank=rank,
    )


def instance() -> Instance:
    return Instance(
        instance=InstanceId("i"),
        model=ModelId("m"),
        shards=tuple(
            Shard(rank=rank, node=NodeId(node), first_layer=rank, last_layer=rank + 1,
                  bytes_reserved=100)
            for rank, node in enumerate(("a", "b"))
        ),
        sharding="pipeline",
        generation=1,
        status="ready",
        context_tokens=10,
        keep_alive_s=1.0,
        ready=(RankReady(rank=0, node=NodeId("a"), process="runner:00", addresses=("x",), pid=1),),
    )  # fmt: skip


def seen(readings: ClusterReadings, now: float, *leases: Lease) -> dict[str, Any]:
    state = ClusterState(
        instances={"i": instance()}, leases={str(one.lease): one for one in leases}
    )
    return snapshot_of(
        ClusterSeen(
            node=NodeId("a"),
            state=state,
            holder=NodeId("b"),
            live=True,
            readings=readings,
            totals=TOTALS,
            now=now,
            at_s=7.0,
        )
    )


def test_a_snapshot_sums_leads_and_demand_and_tells_of_each_node() -> None:
    known = ClusterReadings()
    known.heard(node_reading("a", 400), 0.0)
    known.heard(node_reading("b", 900), 3.0)
    known.heard(runner_reading("a", 0), 3.0)
    known.heard(runner_reading("b", 1), 3.0)
    wanted = ModelDemand(model=ModelId("other"), waiting=5, best_priority=10, oldest_s=1.0)
    demand = DemandReading(node=NodeId("b"), process="gateway:0", models=(wanted,))
    known.heard(demand, 3.0)
    found = seen(known, 4.0)
    # what rank 1 says of requests is not counted: they are the lead's to tell
    assert (found["running"], found["waiting"]) == (2, 1 + 5)
    assert (found["prompt_tokens_per_s"], found["generation_tokens_per_s"]) == (4.0, 7.0)
    a, b = found["nodes"]
    assert (a["node"], a["silent_s"], a["promised_bytes"], a["used_bytes"]) == ("a", 4.0, 100, 50)
    assert (b["node"], b["silent_s"], b["used_bytes"]) == ("b", 1.0, 51)
    [copy] = found["instances"]
    assert [rank["used_bytes"] for rank in copy["ranks"]] == [50, 51]
    assert (copy["running"], copy["kv_bytes"]) == (2, 20)
    assert found["counters"]["ttft_s"] == {"bounds": [0.1, None], "counts": [2, 1], "sum": 0.7}


def test_a_node_has_what_its_sensors_told_and_none_once_that_is_old() -> None:
    known = ClusterReadings()
    for node in ("a", "b"):
        known.heard(node_reading(node, 400), 20.0)
    card = AcceleratorReading(vendor="amd", device="card0", utilisation_ratio=0.0)
    sensed = HardwareReading(node=NodeId("a"), accelerators=(card,), measured_at_s=0.0)
    known.heard(sensed, 10.0)
    a, b = seen(known, 24.0)["nodes"]
    assert b["hardware"] is None
    assert set(a["hardware"]) == {"accelerators", "cpu_temperature_c", "cpu_power_w", "untold"}
    [told] = a["hardware"]["accelerators"]
    assert (told["utilisation_ratio"], told["power_w"]) == (0.0, None)
    assert [one["hardware"] for one in seen(known, 25.0)["nodes"]] == [None, None]


def test_a_node_has_what_is_leased_of_it() -> None:
    known = ClusterReadings()
    for node in ("a", "b"):
        known.heard(node_reading(node, 400), 0.0)
    leases = [
        Lease(lease=LeaseId(f"lease-{size}"), node=NodeId("b"), size_bytes=size, ttl_s=30.0)
        for size in (30, 12)
    ]
    assert [one["leased_bytes"] for one in seen(known, 1.0, *leases)["nodes"]] == [0, 42]


def test_bridges_that_form_a_ring_are_named_until_one_is_off() -> None:
    known = ClusterReadings()
    for node, near in (("a", "bc"), ("b", "ca"), ("c", "ab")):
        ports = ThunderboltReading(
            bridged=True,
            domains=tuple(node + other for other in near),
            peers=tuple(other + node for other in near),
        )
        known.heard(node_reading(node, 400).model_copy(update={"thunderbolt": ports}), 0.0)
    assert seen(known, 1.0)["bridge_loops"] == [["a", "b", "c"]]
    off = ThunderboltReading(bridged=False, domains=("ca", "cb"), peers=("ac", "bc"))
    known.heard(node_reading("c", 400).model_copy(update={"thunderbolt": off}), 2.0)
    assert seen(known, 3.0)["bridge_loops"] == []


def test_what_is_not_known_is_none_and_a_dead_generation_counts_for_nothing() -> None:
    known = ClusterReadings()
    known.heard(runner_reading("a", 0, generation=9), 0.0)
    found = seen(known, 1.0)
    assert found["running"] == 0 and found["nodes"] == []
    [copy] = found["instances"]
    assert copy["running"] is None and copy["phase"] is None


def demand(node: str, process: str, *models: ModelDemand) -> DemandReading:
    return DemandReading(node=NodeId(node), process=process, models=models)


def wanted(model: str, *classes: tuple[int, int, float]) -> ModelDemand:
    """Demand of these (priority, waiting, oldest_s)."""
    told = tuple(ClassDemand(priority=p, waiting=w, oldest_s=s) for p, w, s in classes)
    return ModelDemand(
        model=ModelId(model), waiting=sum(w for _, w, _ in classes), best_priority=classes[0][0],
        oldest_s=max(s for _, _, s in classes), classes=told,
    )  # fmt: skip


def test_the_queue_sums_processes_and_is_in_order_of_priority() -> None:
    known = ClusterReadings()
    known.heard(demand("a", "gateway:0", wanted("x", (5, 2, 1.0), (10, 1, 9.0))), 0.0)
    known.heard(demand("a", "gateway:1", wanted("x", (10, 4, 3.0))), 0.0)
    known.heard(demand("b", "gateway:0", wanted("y", (10, 1, 20.0))), 0.0)
    at_runner = runner_reading("a", 0).model_copy(update={"best_waiting_priority": 0})
    known.heard(at_runner, 0.0)
    known.heard(runner_reading("b", 1).model_copy(update={"best_waiting_priority": 0}), 0.0)
    rows = [
        (one["priority"], one["model"], one["at"], one["waiting"], one["oldest_s"])
        for one in queue_of(known, {"i": instance()}, 1.0)
    ]
    assert rows == [
        (0, "m", "runner", 1, None),
        (5, "x", "gateway", 2, 1.0),
        (10, "y", "gateway", 1, 20.0),
        (10, "x", "gateway", 5, 9.0),
    ]


def test_a_gateway_that_tells_no_priorities_apart_has_its_best() -> None:
    known = ClusterReadings()
    old = ModelDemand(model=ModelId("x"), waiting=3, best_priority=7, oldest_s=2.0)
    known.heard(demand("a", "gateway:0", old), 0.0)
    assert [(one["priority"], one["waiting"]) for one in queue_of(known, {}, 1.0)] == [(7, 3)]


Run = Callable[[SnapshotFeed, list[int]], Coroutine[Any, Any, None]]


def fed(run: Run, bounds: FeedBounds = QUICK) -> None:
    """Run with a feed whose snapshots are numbers, and the list of those that were made."""

    async def whole() -> None:
        made: list[int] = []

        async def build() -> bytes:
            made.append(len(made))
            return str(made[-1]).encode()

        async with asyncio.timeout(20):
            await run(SnapshotFeed(build, AsyncioReactor(asyncio.get_running_loop()), bounds), made)

    asyncio.run(whole())


async def _first(feed: SnapshotFeed, count: int) -> list[bytes]:
    found: list[bytes] = []
    stream = feed.read()
    async for made in stream:
        found.append(made)
        if len(found) == count:
            break
    await stream.aclose()
    return found


def test_readers_share_snapshots_and_without_one_none_is_made() -> None:
    async def run(feed: SnapshotFeed, made: list[int]) -> None:
        await asyncio.sleep(QUICK.every_s * 3)
        assert made == []
        one, other = await asyncio.gather(_first(feed, 4), _first(feed, 4))
        assert one == other == [b"0", b"1", b"2", b"3"]
        assert made == [0, 1, 2, 3] and feed.readers == 0
        await asyncio.sleep(QUICK.every_s * 3)
        assert made == [0, 1, 2, 3]

    fed(run)


def test_who_asks_once_is_given_what_is_fresh() -> None:
    async def run(feed: SnapshotFeed, made: list[int]) -> None:
        asked = await asyncio.gather(*(feed.latest() for _ in range(5)))
        assert set(asked) == {b"0"} and made == [0]
        assert await feed.latest() == b"0"
        await asyncio.sleep(QUICK.every_s * 1.5)
        assert await feed.latest() == b"1"

    fed(run)


def test_a_reader_that_takes_nothing_is_dropped_and_others_go_on() -> None:
    async def run(feed: SnapshotFeed, made: list[int]) -> None:
        async def stuck() -> None:
            async for _ in feed.read():
                await asyncio.sleep(60)

        slow = asyncio.create_task(stuck())
        taken = await _first(feed, 8)
        assert len(taken) == 8
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert feed.readers == 0

    fed(run)


def test_more_readers_than_may_be_are_refused_and_all_end_with_the_feed() -> None:
    async def run(feed: SnapshotFeed, made: list[int]) -> None:
        readers = [asyncio.create_task(_first(feed, 10**6)) for _ in range(QUICK.readers)]
        await asyncio.sleep(QUICK.every_s * 2)
        with pytest.raises(FeedFull):
            feed.check_room()
        feed.close()
        for taken in await asyncio.gather(*readers):
            assert taken

    fed(run)


def test_memory_is_told_by_node_and_rank_and_what_is_not_known_is_null() -> None:
    readings = ClusterReadings()
    readings.heard(node_reading("a", 400).model_copy(update={"wired_bytes": 7}), 0.0)
    reading = runner_reading("a", 0)
    more = {"limit_bytes": 100, "cache_bytes": 3, "memory_ends": 2}
    readings.heard(reading.model_copy(update=more), 0.0)
    leased = Lease(lease=LeaseId("lease-1"), node=NodeId("b"), size_bytes=30, ttl_s=30.0)
    seats = {
        "a": NodeSeat(node=NodeId("a"), name="attic"),
        "b": NodeSeat(node=NodeId("b"), name="box", draining=True, wired_bytes=6 << 30),
    }
    failed = instance().model_copy(update={"instance": InstanceId("f"), "status": "failed"})
    state = ClusterState(
        nodes=seats, instances={"i": instance(), "f": failed}, leases={"lease-1": leased}
    )
    attic, box = memory_of(state, readings, 1.0)["nodes"]
    assert (attic["name"], attic["memory_available_bytes"], attic["wired_bytes"]) == (
        "attic",
        400,
        7,
    )
    assert (attic["promised_bytes"], attic["active_bytes"], attic["leased_bytes"]) == (100, 50, 0)
    (lead,) = attic["ranks"]
    assert (lead["limit_bytes"], lead["cache_bytes"], lead["peak_bytes"]) == (100, 3, 60)
    assert (lead["kv_bytes"], lead["memory_ends"], lead["phase"]) == (20, 2, "ready")
    assert (box["memory_total_bytes"], box["held_back"], box["leased_bytes"]) == (None, True, 30)
    (follower,) = box["ranks"]
    assert (follower["rank"], follower["promised_bytes"]) == (1, 100)
    assert follower["active_bytes"] is follower["phase"] is None
    assert "kv_bytes" not in follower and not attic["held_back"]
