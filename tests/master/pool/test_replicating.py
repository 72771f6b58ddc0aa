"""A replica is placed only where everything allows it; each reason against it alone is enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bus.membership.card_book import HeldCard
from bus.replica.state import NodeSeat
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Conditions, Instance
from bus.wire.messages.events import InstanceDraining, InstancePlaced
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.messages.readings import CardReading
from master.decisions.decide import Scene
from master.decisions.replicating import as_it_stands, replicate
from master.pool import Claim, LoadMeters, PlanBook, PoolChoice, PoolPlan, PoolSettings, Tenure
from tests.harness.holder_scenes import (
    GB,
    N1,
    N2,
    NOW,
    A,
    B,
    copy,
    on_disk,
    ready,
    seen,
    state_of,
    use,
)
from tests.harness.placement_nodes import model

N3 = NodeId("n3")
CLAIM = Claim(B, ((10, NOW),))
SEATS = {name: NodeSeat(node=NodeId(name), name=name) for name in ("n1", "n2")}
DISKS = {N1: (on_disk("a"),), N2: (on_disk("a"),)}


def loaded(*others: Instance, rows: int = 8, **more: Any) -> Scene:
    """A model under load on n1, as a holder sees it that has been there for a while."""
    first = ready()
    fields = {"disks": DISKS, "nodes": SEATS, **more}
    state = state_of(first, *others, nodes=fields.pop("nodes"))
    scene = replace(seen(state, **fields), now=NOW)
    scene.observed.first_heard_at = NOW - 60.0
    use(scene, first, running=rows)
    return scene


def due(scene: Scene, book: PlanBook | None = None, **meters: Any) -> list[Any]:
    known = LoadMeters(**{"heavy_s": {A: 30.0}, **meters})
    return replicate(scene, known, book or PlanBook(), lambda: InstanceId("fresh"))


def test_a_replica_is_placed_on_the_other_node_and_says_why() -> None:
    first = ready(
        context_tokens=512, keep_alive_s=7.0, pinned=True,
        conditions=Conditions(min_nodes=2, sharding="pipeline", layers={"n1": 4}),
    )  # fmt: skip
    scene = loaded(first)
    (placed,) = due(scene)
    assert isinstance(placed, InstancePlaced)
    made = placed.instance
    assert (made.instance, made.model, [s.node for s in made.shards]) == ("fresh", A, [N2])
    assert made.replica == "its instance was overloaded for 30 s: 8 requests"
    assert (made.context_tokens, made.pinned) == (512, False)
    assert (made.conditions.min_nodes, made.conditions.sharding, made.conditions.layers) == (
        1, None, {},
    )  # fmt: skip


def test_of_more_copies_the_reason_says_how_many() -> None:
    settings = PoolSettings(replicas=2)
    nodes = {**SEATS, "n3": NodeSeat(node=N3, name="n3")}
    second = ready("j", nodes=(N2,))
    scene = loaded(second, rows=16, disks={**DISKS, N3: (on_disk("a"),)}, nodes=nodes)
    scene = replace(scene, policy=replace(scene.policy, pool=settings))
    (placed,) = due(scene)
    assert placed.instance.replica == "its 2 instances were overloaded for 30 s: 16 requests"
    assert [s.node for s in placed.instance.shards] == [N3]


def on(name: str, node: NodeId = N2, *, idle_s: float | None = 60.0, **more: Any) -> Any:
    """A change: another model's copy on a node, which idles or is in use."""

    def change(scene: Scene) -> Scene:
        fields = {"model": B, "nodes": (node,), **more}
        other = ready(name, **fields)
        use(scene, other, idle_s=idle_s or 0.0, running=0 if idle_s else 1)
        instances = {**scene.state.instances, other.instance: other}
        return replace(scene, state=scene.state.model_copy(update={"instances": instances}))

    return change


def left(scene: Scene) -> Scene:
    return replace(scene, tenure=Tenure(left_at={N2: NOW - 0.1}))


def left_elsewhere(scene: Scene) -> Scene:
    return replace(scene, tenure=Tenure(left_at={N1: NOW - 0.1}))


def unheard(*, young: bool) -> Callable[[Scene], Scene]:
    def change(scene: Scene) -> Scene:
        scene.observed.first_heard_at = NOW - (1.0 if young else 60.0)
        nodes = {**scene.state.nodes, "n9": NodeSeat(node=NodeId("n9"), name="n9")}
        return replace(scene, state=scene.state.model_copy(update={"nodes": nodes}))

    return change


def young(scene: Scene) -> Scene:
    scene.observed.first_heard_at = NOW - 1.0
    return scene


def chips(first: str, other: str) -> Callable[[Scene], Scene]:
    def change(scene: Scene) -> Scene:
        for node, chip in ((N1, first), (N2, other)):
            card, _ = scene.observed.cards[node]
            scene.observed.hear(CardReading(card=card.model_copy(update={"chip": chip})), NOW)
        return scene

    return change


def speeds(first: float, other: float) -> Callable[[Scene], Scene]:
    def change(scene: Scene) -> Scene:
        for node, speed in ((N1, first), (N2, other)):
            card, _ = scene.observed.cards[node]
            faster = card.model_copy(update={"memory_bytes_per_s": speed})
            scene.observed.hear(CardReading(card=faster), NOW)
        return scene

    return change


def drained(scene: Scene) -> Scene:
    nodes = {**scene.state.nodes, "n1": NodeSeat(node=N1, name="n1", draining=True)}
    slow = speeds(9e9, 1e9)(scene)
    return replace(slow, state=slow.state.model_copy(update={"nodes": nodes}))


def full(scene: Scene) -> Scene:
    """On n2 an idle copy of another model has all of the memory."""
    scene = on("b")(scene)
    other = scene.state.instances["b"]
    shard = other.shards[0].model_copy(update={"bytes_reserved": 12 * GB})
    instances = {**scene.state.instances, "b": other.model_copy(update={"shards": (shard,)})}
    return replace(scene, state=scene.state.model_copy(update={"instances": instances}))


def lost(scene: Scene) -> Scene:
    """A third node is lost, with a copy of another model."""
    card, measured = scene.observed.cards[N2][0], scene.observed.nodes[N2][0]
    scene.observed.cards[N3] = HeldCard(card.model_copy(update={"node": N3}), NOW - 9.0)
    scene.observed.nodes[N3] = (measured.model_copy(update={"node": N3}), NOW - 9.0)
    silent = PeerReading(node=N3, name="n3", status="silent", silent_s=9.0)
    scene.observed.hear(PeersReading(node=N1, peers=(silent,)), NOW)
    nodes = {**scene.state.nodes, "n3": NodeSeat(node=N3, name="n3")}
    there = ready("b", model=B, nodes=(N3,))
    instances = {**scene.state.instances, there.instance: there}
    state = scene.state.model_copy(update={"instances": instances, "nodes": nodes})
    return replace(scene, state=state)


@pytest.mark.parametrize(
    ("change", "comes"),
    [
        (lambda scene: scene, True),
        (left, False),
        (left_elsewhere, True),
        (on("b"), True),
        (on("b", idle_s=None), False),
        (on("b", idle_s=None, node=N1), True),
        (on("b", status="placed"), False),
        (on("b", status="draining"), False),
        (on("b", status="failed"), True),
        (on("b", status="failed", place_again=Conditions()), False),
        (on("b", status="draining", place_again=Conditions(), node=N1), True),
        (young, True),
        (unheard(young=True), False),
        (unheard(young=False), True),
        (speeds(2.9e9, 1e9), True),
        (speeds(3.1e9, 1e9), False),
        (speeds(1e9, 9e9), True),
        (drained, True),
        (full, False),
        (lost, False),
    ],
    ids=lambda value: getattr(value, "__qualname__", str(value)),
)
def test_each_reason_against_a_replica_is_enough(
    change: Callable[[Scene], Scene], comes: bool
) -> None:
    assert len(due(change(loaded()))) == comes


def test_nothing_comes_while_something_waits_for_memory_or_is_not_due() -> None:
    book = PlanBook()
    book.refuse(CLAIM, "full", in_vain=True)
    assert due(loaded(), book) == []
    plan = PoolPlan(CLAIM, PoolChoice({N2: GB}), "waiting", "", None, 0.0)
    assert due(loaded(), PlanBook({B: plan})) == []
    assert due(loaded(), heavy_s={A: 29.0}) == []
    assert due(loaded(), paused_until={A: NOW + 9.0}) == []
    assert due(loaded(disks={N1: DISKS[N1]})) == [], "there is no other node"
    assert due(loaded(), PlanBook(), heavy_s={A: 30.0, B: 30.0}) != []


def test_a_node_has_one_copy_of_a_model() -> None:
    idle = ready("j", nodes=(N2,))
    scene = loaded(idle, rows=16)
    use(scene, idle, idle_s=60.0)
    settings = replace(scene.policy.pool, replicas=2)
    assert due(replace(scene, policy=replace(scene.policy, pool=settings))) == []


def test_a_replica_is_of_one_node() -> None:
    card = model(model=A)
    nodes = {**SEATS, "n3": NodeSeat(node=N3, name="n3")}
    for free, count in ((12, 1), (7, 0)):
        disks = dict.fromkeys((N1, N2, N3), (card,))
        assert len(due(loaded(disks=disks, nodes=nodes, free=free * GB))) == count


def test_a_replica_may_be_as_slow_as_the_slowest_node_of_a_group() -> None:
    first, disks = ready("i", nodes=(N1, N2)), {**DISKS, N3: (on_disk("a"),)}
    scene = seen(state_of(first, nodes=SEATS), disks=disks)
    scene.observed.first_heard_at = NOW - 60.0
    use(scene, first, running=8)
    for node, speed in ((N1, 9e9), (N2, 1e9), (N3, 0.5e9)):
        card, _ = scene.observed.cards[node]
        faster = card.model_copy(update={"memory_bytes_per_s": speed})
        scene.observed.hear(CardReading(card=faster), NOW)
    (placed,) = due(scene)
    assert [s.node for s in placed.instance.shards] == [N3]


def test_a_model_without_room_holds_no_other_one_off() -> None:
    """The one with more rows is too large for the other node."""
    large = ready("large", model=B)
    disks = {N1: (on_disk("a"), on_disk("b", 9)), N2: (on_disk("a"), on_disk("b", 9))}
    scene = loaded(large, disks=disks, free=4 * GB)
    use(scene, large, running=20)
    (placed,) = due(scene, heavy_s={A: 30.0, B: 30.0})
    assert placed.instance.model == A


def test_a_replica_that_is_over_is_drained() -> None:
    replica = ready("r", nodes=(N2,), replica="load")
    scene = loaded(replica, rows=0)
    why = "a had little load for 120 s"
    drains = InstanceDraining(instance=InstanceId("r"), deadline_s=600.0, why=why)
    assert due(scene, light_s={A: 120.0}, heavy_s={}) == [drains]


def test_a_replica_whose_first_copy_does_not_answer_is_seen_as_none() -> None:
    first, replica = ready(), ready("r", nodes=(N2,), replica="load")
    state, r = state_of(first, replica), InstanceId("r")
    assert as_it_stands(r, state, []) == replica
    assert as_it_stands(InstanceId("i"), state, [N1, N2]) == first
    plain = replica.model_copy(update={"replica": ""})
    assert as_it_stands(r, state, [N1]) == plain
    assert as_it_stands(r, state_of(copy(), replica), []) == plain
    assert as_it_stands(InstanceId("x"), state, []) is None
    assert ModelId("a") == first.model
