"""The record of loads: what events make of copies, what it holds, and since when it is whole."""

from __future__ import annotations

from typing import Any

import pytest

from bus.replica.mirror import Mirror, Move
from bus.replica.state import ClusterState, apply
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.control import Snapshot, TermHeartbeat
from bus.wire.messages.events import (
    Event,
    GenerationOpened,
    InstanceDraining,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    KeepAliveSet,
    NodeRenamed,
    RunnerEnded,
    RunnerReady,
    RunnerUnloaded,
)
from gateway.view.watch import LoadTimeline
from gateway.view.watch.load_timeline import Change, LoadTimes

NODES = ("a", "b")


def copy(name: str, nodes: tuple[str, ...] = NODES, **more: Any) -> Instance:
    shards = tuple(
        Shard(rank=at, node=NodeId(node), first_layer=at, last_layer=at + 1, bytes_reserved=100)
        for at, node in enumerate(nodes)
    )
    return Instance(
        instance=InstanceId(name), model=ModelId(f"m-{name}"), shards=shards, context_tokens=10,
        keep_alive_s=1.0, **more,
    )  # fmt: skip


def ready(name: str, rank: int, generation: int = 1) -> RunnerReady:
    return RunnerReady(
        instance=InstanceId(name), generation=generation, rank=rank, node=NodeId(NODES[rank]),
        process="runner:00", pid=1, addresses=("x",),
    )  # fmt: skip


def rank_gone(kind: Any, name: str, rank: int, **more: Any) -> Any:
    return kind(
        instance=InstanceId(name), generation=1, rank=rank, node=NodeId(NODES[rank]), **more
    )


class Log:
    """A log as one replica applies it, and the record beside it."""

    def __init__(self, **bounds: Any) -> None:
        self.state = ClusterState()
        self.timeline = LoadTimeline(**bounds)
        self.timeline.moved([(None, self.state)], 0.0)

    def add(self, body: Any, at_s: float | None = None) -> Log:
        index = self.state.index + 1
        at = float(index) if at_s is None else at_s
        event = Event(term=1, index=index, at_s=at, body=body)
        self.state = apply(self.state, event)
        self.timeline.moved([(event, self.state)], at)
        return self

    def told(self, now_s: float | None = None) -> list[tuple[int, str, str, str]]:
        now = float(self.state.index) if now_s is None else now_s
        found = self.timeline.plain(now)["changes"]
        return [(one["index"], one["what"], one["model"], one["why"]) for one in found]


def test_a_copy_is_followed_from_its_placement_to_its_end() -> None:
    log = Log().add(InstancePlaced(instance=copy("i"))).add(ready("i", 0)).add(ready("i", 1))
    log.add(KeepAliveSet(instance=InstanceId("i"), keep_alive_s=5.0))
    log.add(InstanceDraining(instance=InstanceId("i"), deadline_s=9.0, why="m-x waits for it"))
    log.add(rank_gone(RunnerUnloaded, "i", 0)).add(rank_gone(RunnerUnloaded, "i", 1))
    log.add(InstanceRemoved(instance=InstanceId("i"), why="all its ranks are gone"))
    assert log.told() == [
        (1, "loading", "m-i", ""),
        (3, "ready", "m-i", ""),
        (5, "unloading", "m-i", "m-x waits for it"),
        (8, "unloaded", "m-i", "all its ranks are gone"),
    ]
    first = log.timeline.plain(8.0)["changes"][0]
    assert (first["nodes"], first["bytes"], first["at_s"]) == (["a", "b"], 200, 1.0)


def test_a_copy_that_is_lost_is_loaded_anew_or_given_up() -> None:
    log = Log().add(InstancePlaced(instance=copy("i", ("a",)))).add(ready("i", 0))
    log.add(rank_gone(RunnerEnded, "i", 0, message="killed by signal 9"))
    log.add(GenerationOpened(instance=InstanceId("i"), generation=2, why="rank 0 ended"))
    log.add(ready("i", 0, generation=2))
    log.add(InstanceFailed(instance=InstanceId("i"), why="it crashed 5 times"))
    assert [(what, why) for _, what, _, why in log.told()] == [
        ("loading", ""),
        ("ready", ""),
        ("lost", "killed by signal 9"),
        ("loading", "rank 0 ended"),
        ("ready", ""),
        ("failed", "it crashed 5 times"),
    ]


def test_a_rank_that_ends_while_loading_is_no_change_until_it_is_loaded_anew() -> None:
    log = Log().add(InstancePlaced(instance=copy("i", ("a",))))
    log.add(rank_gone(RunnerEnded, "i", 0, message="no memory"))
    assert [what for _, what, _, _ in log.told()] == ["loading"]
    log.add(GenerationOpened(instance=InstanceId("i"), generation=2, why="again"))
    assert [what for _, what, _, _ in log.told()] == ["loading", "loading"]


def test_events_that_change_no_copy_are_not_told() -> None:
    log = Log()
    log.add(NodeRenamed(node=NodeId("a"), name="reef"))
    log.add(InstanceDraining(instance=InstanceId("unknown"), deadline_s=1.0, why=""))
    assert log.told() == []


def test_what_is_older_than_an_hour_is_forgotten() -> None:
    log = Log().add(InstancePlaced(instance=copy("i")), 10.0)
    log.add(InstancePlaced(instance=copy("j")), 2000.0)
    assert [model for _, _, model, _ in log.told(3610.0)] == ["m-i", "m-j"]
    assert [model for _, _, model, _ in log.told(3611.0)] == ["m-j"]
    assert log.timeline.plain(3611.0)["since_s"] == 11.0


def test_it_is_bounded_and_says_since_when_it_is_whole() -> None:
    log = Log(most=3)
    for number in range(9):
        log.add(InstancePlaced(instance=copy(f"i{number}")))
    assert [index for index, *_ in log.told()] == [7, 8, 9]
    assert log.timeline.plain(9.0)["since_s"] == 7.0


def test_before_the_state_is_known_nothing_is_and_a_gap_is_said() -> None:
    assert LoadTimeline().plain(5.0) == {"since_s": None, "changes": []}
    log = Log().add(InstancePlaced(instance=copy("i")))
    behind = ClusterState(index=90, instances={"k": copy("k")})
    log.timeline.moved([(None, behind)], 50.0)
    log.state = behind
    log.add(InstanceRemoved(instance=InstanceId("k"), why="gone"), 60.0)
    assert [(index, what) for index, what, *_ in log.told(61.0)] == [
        (1, "loading"), (91, "unloaded"),
    ]  # fmt: skip
    assert log.timeline.plain(61.0)["since_s"] == 50.0


def test_a_mirror_gives_it_snapshot_and_events_in_their_order() -> None:
    moves: list[Move] = []
    mirror = Mirror(moves=moves)
    holder = NodeId("a")
    base = ClusterState(term=1, holder=holder, index=4, instances={"k": copy("k")})
    mirror.heard_heartbeat(
        TermHeartbeat(holder=holder, counter=1, index=5, digest=0, addresses=()), 0.0
    )
    mirror.heard_event(
        Event(term=1, index=5, at_s=7.0, holder=holder, body=InstancePlaced(instance=copy("i"))),
        0.0,
    )
    mirror.heard_snapshot(
        Snapshot(term=1, index=4, holder=holder, state=base.model_dump(mode="json")), 0.0
    )
    timeline = LoadTimeline()
    timeline.moved(moves, 8.0)
    assert [(one["index"], one["model"]) for one in timeline.plain(8.0)["changes"]] == [(5, "m-i")]


@pytest.mark.parametrize("field", ["test", "quantizes"])
def test_tests_and_work_on_models_are_left_out(field: str) -> None:
    known = Instance.model_fields[field].annotation
    kind = next(one for one in getattr(known, "__args__", ()) if one is not type(None))
    told = copy("i").model_copy(update={field: kind.model_construct()})
    assert not told.serves
    event = Event(term=1, index=1, at_s=1.0, body=InstanceRemoved(instance=InstanceId("i"), why=""))
    timeline = LoadTimeline()
    timeline.moved([(None, ClusterState(instances={"i": told})), (event, ClusterState())], 1.0)
    assert timeline.plain(1.0)["changes"] == []


def test_the_seconds_of_a_load_are_those_that_its_lead_saw_whole() -> None:
    log, lead, follower = Log(), LoadTimes("a"), LoadTimes("b")
    bodies = (
        InstancePlaced(instance=copy("x")), ready("x", 0), ready("x", 1),
        InstancePlaced(instance=copy("y")), InstanceRemoved(instance=InstanceId("y"), why="gone"),
    )  # fmt: skip
    for body, at_s in zip(bodies, (10.0, 12.0, 13.5, 20.0, 21.0), strict=True):
        log.add(body, at_s)
    changes = log.timeline.plain(21.0)["changes"]
    told = [Change(**{**one, "nodes": tuple(one["nodes"])}) for one in changes]
    assert lead.record(told) == [("m-x", 3.5)]
    assert follower.record(told) == [], "each load is its lead's to count"
    assert LoadTimes("a").record(told[1:]) == [], "when it began is not known here"
