from __future__ import annotations

from dataclasses import replace

from bus.replica.state import ClusterState, NodeSeat, apply
from bus.wire.cards import NodeCard
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Conditions, Instance, Shard
from bus.wire.messages.events import InstanceFailed, InstancePlaced, InstanceRemoved
from bus.wire.messages.readings import CardReading, NodeReading
from master.decisions.decide import Policy, Scene
from master.decisions.observations import Observations
from master.decisions.planner import PlannerNotes, wanted_commands
from master.decisions.prune import SilenceWatch, remove_deleted, remove_silent
from tests.harness.drafts import next_event
from tests.harness.placement_nodes import model as model_card

A, B = NodeId("a"), NodeId("b")
MODEL = ModelId("m")


def placed(
    *nodes: NodeId, pinned: bool = False, conditions: Conditions | None = None
) -> ClusterState:
    shards = tuple(
        Shard(rank=n, node=node, first_layer=n, last_layer=n + 1, bytes_reserved=1)
        for n, node in enumerate(nodes)
    )
    instance = Instance(
        instance=InstanceId("i"), model=MODEL, shards=shards, context_tokens=64,
        keep_alive_s=-1.0, pinned=pinned, priority=3, conditions=conditions or Conditions(),
    )  # fmt: skip
    body = InstancePlaced(instance=instance)
    return apply(ClusterState(), next_event(ClusterState(), body, term=1, at_s=0.0))


def card(node: NodeId, *models: ModelId, at_s: float = 1.0) -> NodeCard:
    return NodeCard(
        node=node, name=node, platform="linux", cores=1, memory_bytes=1, backends=(),
        mlx_version="", shoal_version="", slots=1, announced_at_s=at_s,
        models=tuple(model_card([1], model=model) for model in models),
    )  # fmt: skip


def hears(view: Observations, node: NodeId, now: float) -> None:
    reading = NodeReading(
        node=node, memory_total_bytes=1, memory_available_bytes=1, cpu_ratio=0.0, load_1m=0.0,
        disk_total_bytes=1, disk_free_bytes=1, measured_at_s=0.0,
    )  # fmt: skip
    view.hear(reading, now)


def scene(state: ClusterState, view: Observations, now: float) -> Scene:
    return Scene(state, view, Policy(), now=now)


def test_a_node_that_is_heard_keeps_what_it_has() -> None:
    view, watch = Observations(), SilenceWatch(60.0)
    watch.begin(100.0)
    for step in range(300):
        hears(view, A, 100.0 + step)
        assert remove_silent(scene(placed(A), view, 100.0 + step), watch) == []


def test_a_silent_node_has_the_whole_grace_from_when_it_was_last_heard() -> None:
    view, watch = Observations(), SilenceWatch(60.0)
    watch.begin(100.0)
    hears(view, A, 130.0)
    assert remove_silent(scene(placed(A), view, 189.9), watch) == []
    (gone,) = remove_silent(scene(placed(A), view, 190.0), watch)
    assert isinstance(gone, InstanceRemoved) and "a for 60 s" in gone.why


def test_a_new_holder_gives_the_whole_grace_even_to_those_it_never_heard() -> None:
    view, watch = Observations(), SilenceWatch(60.0)
    hears(view, A, 10.0)
    watch.begin(100.0)
    assert remove_silent(scene(placed(A, B), view, 159.9), watch) == []
    hears(view, B, 159.9)
    (gone,) = remove_silent(scene(placed(A, B), view, 160.0), watch)
    assert "from a for" in gone.why


def test_a_card_alone_is_a_sign_of_life() -> None:
    view, watch = Observations(), SilenceWatch(60.0)
    watch.begin(0.0)
    view.hear(CardReading(card=card(A)), 30.0)
    assert remove_silent(scene(placed(A), view, 89.0), watch) == []


def again(state: ClusterState, body: InstanceFailed | InstanceRemoved) -> ClusterState:
    return apply(state, next_event(state, body, term=1, at_s=0.0))


def test_a_pinned_copy_is_wanted_elsewhere_under_its_conditions_until_it_is_there() -> None:
    view, watch = Observations(), SilenceWatch(60.0)
    watch.begin(0.0)
    asked = Conditions(excluded_nodes=(B,), min_nodes=2, sharding="pipeline", context_tokens=32)
    state = placed(A, pinned=True, conditions=asked)
    (gone,) = remove_silent(scene(state, view, 60.0), watch)
    assert isinstance(gone, InstanceFailed) and "a for 60 s" in gone.why
    state = again(state, gone)
    for now in (60.1, 600.0):
        assert remove_silent(scene(state, view, now), watch) == []
        (wish,) = wanted_commands(scene(state, view, now), PlannerNotes())
        assert (wish.model, wish.pinned, wish.priority) == (MODEL, True, 10)
        assert Conditions.model_validate(wish, from_attributes=True) == asked
    there = InstancePlaced(instance=next(iter(placed(B, pinned=True).instances.values())))
    state = apply(state, next_event(state, there, term=1, at_s=0.0))
    assert wanted_commands(scene(state, view, 601.0), PlannerNotes()) == []


def test_an_unpinned_copy_or_one_with_another_is_left_to_those_who_want_it() -> None:
    view, watch = Observations(), SilenceWatch(60.0)
    watch.begin(0.0)
    (gone,) = remove_silent(scene(placed(A), view, 60.0), watch)
    assert isinstance(gone, InstanceRemoved)
    assert wanted_commands(scene(again(placed(A), gone), view, 60.1), PlannerNotes()) == []
    both = placed(A, pinned=True)
    other = next(iter(placed(B, pinned=True).instances.values()))
    other = other.model_copy(update={"instance": InstanceId("j")})
    both = apply(both, next_event(both, InstancePlaced(instance=other), term=1, at_s=0.0))
    hears(view, B, 30.0)
    (gone,) = remove_silent(scene(both, view, 60.0), watch)
    assert isinstance(gone, InstanceRemoved)


def failed(*, pinned: bool = False) -> ClusterState:
    body = InstanceFailed(instance=InstanceId("i"), why="its files are gone", place_again=None)
    before = placed(A, pinned=pinned)
    return apply(before, next_event(before, body, term=1, at_s=0.0))


def test_a_failed_instance_goes_when_no_node_has_its_model_any_more() -> None:
    view, failed_at = Observations(), {InstanceId("i"): 100.0}
    view.hear(CardReading(card=card(A)), 100.0)
    assert remove_deleted(scene(failed(), view, 129.9), failed_at) == []
    (gone,) = remove_deleted(scene(failed(), view, 130.0), failed_at)
    assert gone.why == "no node has the model any more"
    assert remove_deleted(scene(placed(A), view, 130.0), failed_at) == [], "it did not fail"
    assert remove_deleted(scene(failed(pinned=True), view, 130.0), failed_at) == []
    assert remove_deleted(scene(failed(), view, 130.0), {}) == [], "a new leader waits"


def test_a_failed_instance_stays_while_a_node_may_have_its_model() -> None:
    view, failed_at = Observations(), {InstanceId("i"): 100.0}
    assert remove_deleted(scene(failed(), view, 200.0), failed_at) == [], "no card is known"
    view.hear(CardReading(card=card(A, MODEL)), 190.0)
    assert remove_deleted(scene(failed(), view, 200.0), failed_at) == []
    view.hear(CardReading(card=card(A, at_s=2.0)), 200.0)
    known = scene(failed(), view, 201.0)
    nodes = {node: NodeSeat(node=node, name=node) for node in (A, B)}
    two = replace(known, state=known.state.model_copy(update={"nodes": nodes}))
    assert remove_deleted(two, failed_at) == [], "b's card is unknown"
    assert remove_deleted(known, failed_at)
