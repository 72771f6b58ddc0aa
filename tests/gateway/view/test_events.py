"""Events of the log: their form, what a ring holds of them, who is given them as they happen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, get_args

import pytest

from bus.links.reactor import AsyncioReactor
from bus.replica.state import ClusterState, apply
from bus.wire.api_keys import ApiKey
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages import events
from bus.wire.messages.derived import DerivedModel, DerivedTurn
from bus.wire.messages.events import (
    ApiKeyAdded,
    ApiKeyChanged,
    ApiKeyRemoved,
    Event,
    InstancePlaced,
    InstanceRemoved,
    ModelDerived,
    NodeRenamed,
    RunnerEnded,
    RunnerReady,
)
from gateway.view.watch import (
    Entry,
    EventBounds,
    EventFeed,
    EventRing,
    FeedFull,
    LoadTimeline,
    LogPlace,
)
from gateway.view.watch.event_form import MOST_WHY, event_told
from tests.recorded.specimens import full, least

A = NodeId("a")


def renamed(name: str) -> NodeRenamed:
    return NodeRenamed(node=A, name=name)


def copy(name: str) -> Instance:
    shard = Shard(rank=0, node=A, first_layer=0, last_layer=1, bytes_reserved=1)
    return Instance(
        instance=InstanceId(name), model=ModelId(f"m-{name}"), shards=(shard,), context_tokens=10,
        keep_alive_s=1.0,
    )  # fmt: skip


class Log:
    """A log as one process applies it, and what is held of it."""

    def __init__(self, index: int = 0, term: int = 1, **bounds: Any) -> None:
        self.ring = EventRing(**bounds)
        self.snapshot(index, term)

    def snapshot(self, index: int, term: int, holder: str = "a") -> Log:
        self.state = ClusterState(index=index, term=term, holder=NodeId(holder))
        self.ring.moved([(None, self.state)], 9.0)
        return self

    def add(self, *bodies: Any, term: int | None = None) -> Log:
        for body in bodies:
            event = Event(
                term=term or self.state.term, index=self.state.index + 1, at_s=1.0, body=body,
                holder=self.state.holder,
            )  # fmt: skip
            self.state = apply(self.state, event)
            self.ring.moved([(event, self.state)], 9.0)
        return self

    def fill(self, count: int) -> Log:
        return self.add(*(renamed(f"n{number}") for number in range(count)))

    def after(self, term: int | None, index: int, limit: int = 1000) -> list[Any]:
        return told(self.ring.after(LogPlace(term, index), limit))


def told(entries: list[Entry]) -> list[Any]:
    """Return the index of each event; of a gap from where to where."""
    found: list[Any] = []
    for entry in entries:
        event = json.loads(entry.data)
        assert event["index"] == entry.place.index
        gap = event["kind"] == "gap"
        found.append((event["about"]["after"], event["index"]) if gap else event["index"])
    return found


def form(body: Any, before: ClusterState | None = None) -> dict[str, Any]:
    event = Event(term=3, index=7, at_s=5.0, body=body)
    return event_told(event, before or ClusterState(), ClusterState())


def test_an_event_is_told_with_its_place_its_time_and_what_it_is_about() -> None:
    assert form(InstancePlaced(instance=copy("i"))) == {
        "index": 7, "term": 3, "at_s": 5.0, "kind": "instance_placed",
        "about": {"instance": "i", "model": "m-i", "nodes": ["a"]}, "why": "",
    }  # fmt: skip


def test_what_ends_is_told_with_the_model_that_it_was() -> None:
    before = ClusterState(instances={"i": copy("i")})
    gone = form(InstanceRemoved(instance=InstanceId("i"), why="not used"), before)
    assert (gone["about"], gone["why"]) == ({"instance": "i", "model": "m-i"}, "not used")
    ended = RunnerEnded(
        instance=InstanceId("i"), generation=2, rank=0, node=A, exit_code=9, message="x" * 5000
    )
    told_of = form(ended)
    assert told_of["about"] == {
        "instance": "i", "model": None, "generation": 2, "rank": 0, "node": "a", "exit_code": 9,
    }  # fmt: skip
    assert told_of["why"] == "x" * MOST_WHY


def kinds_of_events() -> list[Any]:
    return list(get_args(get_args(events.EventBody)[0]))


@pytest.mark.parametrize("kind", kinds_of_events(), ids=lambda kind: kind.__name__)
def test_every_kind_of_event_has_the_one_form(kind: Any) -> None:
    assert len(kinds_of_events()) > 20
    about = [set(form(body)["about"]) for body in (full(kind), least(kind))]
    assert about[0] == about[1] and about[0], "a kind has the same keys each time"
    found = form(full(kind))
    assert list(found) == ["index", "term", "at_s", "kind", "about", "why"]
    assert found["kind"] == full(kind).kind and "sha256" not in json.dumps(found)


def test_of_keys_and_derived_models_nothing_secret_is_told() -> None:
    key = ApiKey(
        id="key-00000001", name="ci", hash=f"sha256:{'a' * 64}", scope="admin",
        old_hash=f"sha256:{'b' * 64}",
    )  # fmt: skip
    before = ClusterState(api_keys={key.id: key})
    for body in (ApiKeyAdded(key=key), ApiKeyChanged(key=key), ApiKeyRemoved(key_id=key.id)):
        assert form(body, before)["about"] == {"key": "key-00000001", "name": "ci"}
    derived = DerivedModel(
        name=ModelId("mine"), base=ModelId("tiny"), parent=ModelId("tiny"), system="hush",
        turns=(DerivedTurn(role="user", content="hush"),),
    )  # fmt: skip
    found = form(ModelDerived(derived=derived))
    assert found["about"] == {"model": "mine", "base": "tiny"} and "hush" not in str(found)


def test_a_log_that_is_known_from_its_first_event_has_no_gap() -> None:
    log = Log().fill(5)
    assert told(log.ring.latest(3)) == [3, 4, 5]
    assert log.after(None, 0) == [1, 2, 3, 4, 5]
    assert log.after(1, 3, limit=1) == [4]
    assert log.after(1, 5) == []


def test_a_snapshot_in_place_of_events_is_a_gap() -> None:
    log = Log(index=40).fill(2)
    assert told(log.ring.latest(9)) == [(None, 40), 41, 42]
    log.snapshot(50, 1).fill(1)
    assert log.after(1, 41) == [42, (42, 50), 51]
    assert log.after(1, 42) == [(42, 50), 51]
    assert log.after(1, 46) == [(42, 50), 51]
    assert log.after(1, 50) == [51]


def test_a_snapshot_of_where_it_is_already_is_no_gap() -> None:
    log = Log().fill(2)
    log.snapshot(2, 1).fill(1)
    assert told(log.ring.latest(9)) == [1, 2, 3]


def test_who_goes_on_from_what_is_not_held_is_told_of_the_gap() -> None:
    log = Log(most=3).fill(9)
    assert len(log.ring) == 3
    assert log.after(1, 2) == [(2, 6), 7, 8, 9]
    assert log.after(1, 2, limit=2) == [(2, 6), 7]
    assert log.after(1, 6) == [7, 8, 9]
    fresh = Log(index=40).fill(1)
    assert fresh.after(1, 12) == [(None, 40), 41]
    assert fresh.after(1, 40) == [41]


def test_it_is_bounded_in_bytes_too() -> None:
    log = Log(most_bytes=3000).add(*(renamed("x" * 199) for _ in range(50)))
    held = log.ring.latest(50)
    assert 3 <= len(held) <= 3000 // 300
    assert log.after(1, 1)[0] == (1, 50 - len(held))


def test_a_log_that_gave_way_to_another_is_forgotten() -> None:
    log = Log().fill(9)
    log.snapshot(4, 2, holder="b").fill(2)
    assert told(log.ring.latest(9)) == [(None, 4), 5, 6]
    assert log.after(1, 9) == [(None, 4), 5, 6], "its place is beyond this log's, and of a term ago"
    assert log.after(2, 5) == [6]
    log.fill(5)
    assert log.after(1, 9) == [(None, 4), 5, 6, 7, 8, 9, 10, 11], "another event stands there"


def test_an_event_of_another_term_at_a_place_is_another_event() -> None:
    log = Log(most=4).fill(6)
    assert log.after(1, 4) == [5, 6]
    assert log.after(9, 4) == [(4, 2), 3, 4, 5, 6]
    assert log.after(9, 2) == [(2, 2), 3, 4, 5, 6]


def test_a_place_that_is_not_known_yet_is_a_gap_and_not_all_again() -> None:
    log = Log().fill(3)
    assert log.after(None, 8) == log.after(1, 8) == [(8, 3)]


def test_nothing_is_told_before_anything_is_known() -> None:
    ring = EventRing()
    assert ring.last is None and ring.latest(9) == ring.after(LogPlace(None, 7), 9) == []


def test_what_loads_and_what_is_told_come_of_the_same_moves() -> None:
    timeline, ring = LoadTimeline(), EventRing()
    state = ClusterState()
    moves: list[Any] = [(None, state)]
    ready = RunnerReady(
        instance=InstanceId("i"), generation=1, rank=0, node=A, process="runner:00", pid=1,
        addresses=("x",),
    )  # fmt: skip
    for index, body in enumerate((InstancePlaced(instance=copy("i")), ready), start=1):
        event = Event(term=1, index=index, at_s=1.0, body=body)
        state = apply(state, event)
        moves.append((event, state))
    timeline.moved(moves, 1.0)
    ring.moved(moves, 1.0)
    assert (
        [one["index"] for one in timeline.plain(1.0)["changes"]] == told(ring.latest(9)) == [1, 2]
    )


# --- readers --------------------------------------------------------------------------------------

QUICK = EventBounds(quiet_s=0.05, slow_s=0.2, readers=2, behind_s=0.05)
Run = Callable[[EventFeed, Log], Coroutine[Any, Any, None]]


def fed(run: Run, bounds: EventBounds = QUICK) -> None:
    """Run with a feed of a log of three events."""

    async def whole() -> None:
        log = Log().fill(3)
        reactor = AsyncioReactor(asyncio.get_running_loop())
        async with asyncio.timeout(20):
            await run(EventFeed(reactor, log.ring, bounds), log)

    asyncio.run(whole())


async def taken(feed: EventFeed, after: LogPlace | None, count: int, limit: int = 100) -> list[Any]:
    """Return the first events that a reader is given."""
    found: list[Any] = []
    stream = feed.read(after, limit, asyncio.get_running_loop().create_future())
    async for entries in stream:
        found += told(list(entries))
        if len(found) >= count:
            break
    await stream.aclose()
    return found


def further(feed: EventFeed, log: Log, count: int = 1) -> None:
    """Have more events happen."""
    log.fill(count)
    feed.moved([], 0.0)


def test_a_reader_is_given_what_was_and_what_happens() -> None:
    async def run(feed: EventFeed, log: Log) -> None:
        reading = asyncio.create_task(taken(feed, None, 5, limit=2))
        other = asyncio.create_task(taken(feed, LogPlace(1, 1), 5))
        await asyncio.sleep(0.01)
        assert feed.readers == 2
        further(feed, log, 3)
        assert await reading == [2, 3, 4, 5, 6]
        assert await other == [2, 3, 4, 5, 6]
        assert feed.readers == 0

    fed(run)


def test_none_of_the_past_is_given_to_who_wants_none() -> None:
    async def run(feed: EventFeed, log: Log) -> None:
        reading = asyncio.create_task(taken(feed, None, 1, limit=0))
        await asyncio.sleep(0.01)
        further(feed, log)
        assert await reading == [4]

    fed(run)


def test_a_quiet_reader_hears_that_the_stream_is_open() -> None:
    async def run(feed: EventFeed, log: Log) -> None:
        stream = feed.read(LogPlace(1, 3), 9, asyncio.get_running_loop().create_future())
        assert list(await anext(stream)) == [] and list(await anext(stream)) == []
        further(feed, log)
        assert told(list(await anext(stream))) == [4]
        await stream.aclose()

    fed(run)


def test_a_process_that_is_behind_is_waited_for_and_then_says_so() -> None:
    async def late(feed: EventFeed, log: Log) -> None:
        listing = asyncio.create_task(feed.listed(LogPlace(1, 4), 9))
        await asyncio.sleep(0.01)
        further(feed, log, 2)
        assert told(await listing) == [5]

    async def never(feed: EventFeed, log: Log) -> None:
        assert told(await feed.listed(LogPlace(1, 8), 9)) == [(8, 3)]

    fed(late, EventBounds(behind_s=10.0))
    fed(never)


def test_a_reader_that_falls_behind_the_ring_is_told_of_a_gap() -> None:
    async def run(feed: EventFeed, log: Log) -> None:
        log = Log(most=3).fill(3)
        feed = EventFeed(AsyncioReactor(asyncio.get_running_loop()), log.ring, QUICK)
        stream = feed.read(None, 9, asyncio.get_running_loop().create_future())
        assert told(list(await anext(stream))) == [1, 2, 3]
        further(feed, log, 5)
        assert told(list(await anext(stream))) == [(3, 5), 6, 7, 8]
        await stream.aclose()

    fed(run)


def test_a_reader_that_takes_nothing_is_dropped() -> None:
    async def run(feed: EventFeed, log: Log) -> None:
        async def stuck() -> None:
            gone = asyncio.get_running_loop().create_future()
            async for _ in feed.read(None, 9, gone):
                await asyncio.sleep(60)

        slow = asyncio.create_task(stuck())
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert feed.readers == 0

    fed(run)


def test_a_reader_that_is_gone_ends_at_once() -> None:
    async def run(feed: EventFeed, log: Log) -> None:
        gone = asyncio.get_running_loop().create_future()

        async def read() -> int:
            return sum([len(entries) async for entries in feed.read(None, 9, gone)])

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        gone.set_result(None)
        assert await reading == 3 and feed.readers == 0

    fed(run, EventBounds(quiet_s=600.0))


def test_more_readers_than_may_be_are_refused_and_all_end_with_the_feed() -> None:
    async def run(feed: EventFeed, log: Log) -> None:
        readers = [asyncio.create_task(taken(feed, None, 10**6)) for _ in range(QUICK.readers)]
        await asyncio.sleep(0.01)
        with pytest.raises(FeedFull, match="/events"):
            feed.check_room()
        feed.close()
        assert await asyncio.gather(*readers) == [[1, 2, 3], [1, 2, 3]]
        feed.check_room()

    fed(run)
