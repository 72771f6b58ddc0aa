"""The pool as a decision sees it: copies, claims, who makes way, pins and what cards say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.replica.state import ClusterState, NodeSeat
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Conditions, Instance
from bus.wire.messages.commands import PinModel, PlaceModel, TakeLease
from bus.wire.messages.events import ModelPinned, ModelUnpinned
from bus.wire.messages.readings import ClassDemand, DemandReading, ModelDemand
from bus.wire.messages.weights import Quantizing
from bus.wire.pool import MAX_PINS, Lease, LeaseId, Pin
from master.decisions.decide import Policy
from master.decisions.pool_view import (
    BY_CARD,
    choose,
    claim_of,
    conditions_of,
    copies_of,
    decide_pin,
    instance_of,
    is_kept,
    living,
    pinned_by_cards,
    pins_of_cards,
    placement_again,
    room_for,
)
from master.placement import PlacementSpec
from master.pool import Claim, PoolChoice, Promise, Tenure
from tests.harness.holder_scenes import (
    GB,
    N1,
    N2,
    NOW,
    A,
    B,
    copy,
    demand,
    on_disk,
    ready,
    seen,
    state_of,
    use,
)

WISH = PlaceModel(command_id=CommandId("c"), model=B)
MAKING = Quantizing(source=B, bits=4)
PINNED = {"a": Pin(model=A, by="ann")}


def lease(gigabytes: int = 4, **more: Any) -> TakeLease:
    return TakeLease(
        command_id=CommandId("l"), lease=LeaseId("lease-l"), size_bytes=gigabytes * GB, **more
    )  # fmt: skip


def test_copies_are_seen_with_their_use_turn_and_load_and_who_waits_for_them() -> None:
    i, j, failed = ready("i"), copy("j", model=B, nodes=(N1, N2)), copy("f", status="failed")
    scene = demand(seen(state_of(i, j, failed, pins=PINNED)), a=1)
    tenure = Tenure(ready_at={i.instance: 7.0}, load_s={A: 2.25})
    use(scene, i, idle_s=3.0)
    first, second = copies_of(replace(scene, tenure=tenure))
    assert (first.instance, first.ready_at, first.load_s, first.pinned_by) == (i, 7.0, 2.25, "ann")
    assert first.use is not None and first.use.idle_s == 3.0
    assert first.waiting == Claim(A, ((1, NOW - 1.0),))
    assert (second.instance, second.ready_at, second.use, second.waiting) == (j, None, None, None)
    assert second.load_s == 1.5 + 2.0, "a second for each gigabyte, and a start"


def test_of_a_pinned_model_the_replica_is_not_pinned() -> None:
    state = state_of(ready("i"), ready("r", replica="load"), pins=PINNED)
    nodes = {"n1": NodeSeat(node=N1, name="n1")}
    found = copies_of(seen(state.model_copy(update={"nodes": nodes})))
    assert [(one.pinned_by, one.replica) for one in found] == [("ann", ""), (None, "load")]
    quiet = {**nodes, "n9": NodeSeat(node=NodeId("n9"), name="n9")}
    away = state_of(ready("i", nodes=(NodeId("n9"),)), ready("r", replica="load"), pins=PINNED)
    found = copies_of(seen(away.model_copy(update={"nodes": quiet})))
    assert [(one.pinned_by, one.replica) for one in found] == [("ann", ""), ("ann", "")]


def test_a_claim_is_of_those_who_wait_else_of_who_wished_for_it() -> None:
    since = Tenure(wished_at={B: 60.0, ModelId("lease-l"): 50.0})
    scene = replace(seen(state_of(pins=PINNED)), tenure=since)
    wish = WISH.model_copy(update={"priority": 20})
    assert claim_of(scene, wish) == Claim(B, ((20, 60.0),), "asked")
    pin = PlaceModel(command_id=CommandId("c"), model=A)
    assert claim_of(scene, pin) == Claim(A, ((10, NOW),), "pin")
    assert claim_of(scene, lease(priority=30)) == Claim(ModelId("lease-l"), ((30, 50.0),), "lease")
    assert claim_of(demand(scene, b=5), wish) == Claim(B, ((5, NOW - 1.0),), "demand")
    classes = tuple(
        ClassDemand(priority=p, waiting=1, oldest_s=s) for p, s in ((1, 2.0), (9, 40.0))
    )
    told = ModelDemand(model=B, waiting=2, best_priority=1, oldest_s=40.0, classes=classes)
    scene.observed.hear(DemandReading(node=N1, process="gateway", models=(told,)), NOW)
    assert claim_of(scene, wish) == Claim(B, ((1, NOW - 2.0), (9, NOW - 40.0)), "demand")


def test_a_choice_says_what_loading_is_taken_to_take() -> None:
    scene = seen(state_of(), disks={N1: (on_disk("b", 4),)})
    spec, claim = PlacementSpec(B), Claim(B, ((10, NOW),))
    found = choose(scene, spec, claim)
    assert isinstance(found, PoolChoice)
    (need,) = found.needs.values()
    assert found.load_s == pytest.approx(1.5 + need / GB)
    known = replace(scene, tenure=Tenure(load_s={B: 9.0}))
    found = choose(known, spec, claim)
    assert isinstance(found, PoolChoice) and found.load_s == 9.0


def test_what_leaves_for_one_leaves_for_no_other_and_refusals_name_leases_and_nodes() -> None:
    other = ready("i", nodes=(N1,)).model_copy(
        update={"shards": (ready().shards[0].model_copy(update={"bytes_reserved": 12 * GB}),)}
    )  # fmt: skip
    spec, claim = PlacementSpec(B), Claim(B, ((10, NOW),))
    scene = seen(state_of(other), disks={N1: (on_disk("b", 4),)}, free=0)
    use(scene, other, idle_s=60.0)
    found = choose(scene, spec, claim)
    assert isinstance(found, PoolChoice)
    assert [one.copy.instance for one in found.victims] == [other]
    promised = replace(scene, promises=(Promise(ModelId("x"), {N1: GB}, (other,)),))
    refused = choose(promised, spec, claim)
    assert isinstance(refused, Refusal) and refused.reason == "no_capacity"
    assert "leased" not in refused.message and not refused.message.endswith("; ")
    held = {
        name: Lease(lease=LeaseId(name), node=node, size_bytes=GB, owner=owner, ttl_s=9.0)
        for name, node, owner in (("lease-1", N1, "ann"), ("lease-2", NodeId("n9"), ""))
    }
    nodes = {
        "n1": NodeSeat(node=N1, name="box"),
        "n8": NodeSeat(node=NodeId("n8"), name="full", draining=True, wired_bytes=5 * GB),
        "n7": NodeSeat(node=NodeId("n7"), name="drained", draining=True),
        "n6": NodeSeat(node=NodeId("n6"), name="open", wired_bytes=5 * GB),
    }
    state = promised.state.model_copy(update={"leases": held, "nodes": nodes})
    refused = choose(replace(promised, state=state), spec, claim)
    assert isinstance(refused, Refusal)
    assert refused.message.endswith(
        "; full takes no model because 5.00 GB stay wired there without one: reboot to free them, "
        "or load anyway with `shoal nodes undrain full`; leased: 1.00 GB on box to ann (lease-1), "
        "1.00 GB on n9 to someone (lease-2)"
    )
    never = choose(
        replace(seen(state, disks={N1: (on_disk("b", 40),)})), spec, claim
    )  # fmt: skip
    assert isinstance(never, Refusal) and never.reason == "insufficient_memory"
    assert "leased" not in never.message and "full takes no model" in never.message


def test_a_lease_goes_to_the_node_that_is_named_or_is_told_why_not() -> None:
    scene = seen(state_of())
    for node in (N1, N2):
        found = room_for(scene, lease(node=node))
        assert isinstance(found, PoolChoice) and found.needs == {node: 4 * GB}
    found = room_for(scene, lease(node=NodeId("n9")))
    assert isinstance(found, Refusal)
    assert (found.reason, found.field) == ("unknown_node", "node")
    crowded = room_for(replace(scene, leases=scene.leases), lease(13, node=N1))
    assert isinstance(crowded, Refusal) and crowded.reason == "insufficient_memory"
    pinned = state_of(ready(), pins=PINNED)
    (shard,) = pinned.instances["i"].shards
    big = pinned.instances["i"].model_copy(
        update={"shards": (shard.model_copy(update={"bytes_reserved": 12 * GB}),)}
    )  # fmt: skip
    scene = seen(state_of(big, pins=PINNED), free=0)
    found = room_for(scene, lease(12, node=N1))
    assert isinstance(found, Refusal) and found.facts["pinned"] == ["a"]
    measured = scene.observed.nodes[N2][0]
    free = measured.model_copy(update={"memory_available_bytes": 12 * GB})
    scene.observed.hear(free, NOW)
    assert isinstance(room_for(scene, lease(12, node=N2)), PoolChoice)
    found = room_for(scene, lease(12, node=N1))
    assert isinstance(found, Refusal) and found.facts["pinned"] == ["a"]


# --- pins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "pinned", "pins", "there", "by_card", "found"),
    [
        ("a", True, (), (), False, "pinned"),
        ("a", True, ("a",), (), False, None),
        ("a", True, ("b",), (), False, "pinned"),
        ("x", True, (), (), False, "unknown_model"),
        ("x", True, (), (ready(model=ModelId("x")),), False, "pinned"),
        ("x", True, (), (ready(model=ModelId("x"), quantizes=MAKING),), False, "unknown_model"),
        ("x", True, (), (ready(),), False, "unknown_model"),
        ("a", False, ("a",), (), False, "unpinned"),
        ("a", False, (), (), False, None),
        ("a", False, (), (ready(),), False, None),
        ("a", False, (), (ready(pinned=True),), False, "unpinned"),
        ("a", False, (), (ready(), ready("j", pinned=True)), False, "unpinned"),
        ("a", False, (), (ready(pinned=True, quantizes=MAKING),), False, None),
        ("a", False, (), (ready(pinned=True, model=B),), False, None),
        ("a", False, ("a",), (), True, "conflict"),
        ("a", True, (), (), True, "pinned"),
    ],
)
def test_what_a_command_about_a_pin_comes_to(
    model: str, pinned: bool, pins: tuple[str, ...], there: tuple[Instance, ...], by_card: bool,
    found: str | None,
) -> None:  # fmt: skip
    command = PinModel(
        command_id=CommandId("p"), model=ModelId(model), pinned=pinned, by="ann", at_s=5.0
    )  # fmt: skip
    state = state_of(*there, pins={name: Pin(model=ModelId(name)) for name in pins})
    body = decide_pin(command, state, frozenset({A, B}), by_card=by_card)
    match found:
        case None:
            assert body is None
        case "pinned":
            assert body == ModelPinned(pin=Pin(model=ModelId(model), by="ann", at_s=5.0))
        case "unpinned":
            assert body == ModelUnpinned(model=ModelId(model))
        case reason:
            assert isinstance(body, Refusal) and body.reason == reason


def test_the_last_pin_is_the_sixty_fourth_or_however_many_there_may_be() -> None:
    for count, fits in ((MAX_PINS - 1, True), (MAX_PINS, False), (MAX_PINS + 1, False)):
        pins = {f"m{n}": Pin(model=ModelId(f"m{n}")) for n in range(count)}
        command = PinModel(command_id=CommandId("p"), model=A)
        body = decide_pin(command, state_of(pins=pins), frozenset({A}), by_card=False)
        assert isinstance(body, ModelPinned) == fits


@pytest.mark.parametrize(
    ("there", "by", "message"),
    [
        ((ready(),), "ann", "a is pinned by ann; `shoal unpin a` first"),
        ((ready(),), "", "a is pinned; `shoal unpin a` first"),
        ((ready(),), BY_CARD, "a is pinned by its card.toml; remove `pin` from that file first"),
        ((copy(),), "ann", "a is pinned by ann; `shoal unpin a` first"),
        ((ready(status="draining"),), "ann", None),
        ((copy(status="failed"),), "ann", None),
        ((ready(), ready("j")), "ann", None),
        ((ready(), copy("j")), "ann", "a is pinned by ann; `shoal unpin a` first"),
        ((ready(), ready("j", model=B)), "ann", "a is pinned by ann; `shoal unpin a` first"),
        ((ready(), copy("j"), ready("k")), "ann", None),
        ((ready(),), None, None),
    ],
)
def test_the_last_copy_of_a_pinned_model_is_kept(
    there: tuple[Instance, ...], by: str | None, message: str | None
) -> None:
    pins = {} if by is None else {"a": Pin(model=A, by=by)}
    kept = is_kept(there[0], state_of(*there, pins=pins))
    assert (None if kept is None else kept.message) == message
    if kept is not None:
        assert (kept.reason, kept.field, kept.facts) == ("conflict", "instance", {"pinned": ["a"]})


def test_of_the_cards_of_a_model_the_newest_says_whether_it_is_pinned() -> None:
    def said(*cards: tuple[NodeId, float, bool], ask: tuple[ModelId, ...] = ()) -> Any:
        disks = {node: (on_disk("a", pin=pin, card_at_s=at_s),) for node, at_s, pin in cards}
        return pinned_by_cards(seen(state_of(), disks=disks), ask)

    assert said((N1, 1.0, True)) == {A: True}
    assert said((N1, 1.0, True), (N2, 2.0, False)) == {A: False}
    assert said((N1, 2.0, True), (N2, 1.0, False)) == {A: True}
    assert said((N1, 2.0, False), (N2, 1.0, True)) == {A: False}
    assert said((N1, 1.0, True), (N2, 1.0, False)) == {A: True}
    assert said((N1, 1.0, False)) == {}
    assert said((N1, 1.0, False), ask=(A, B)) == {A: False}
    assert said((N1, 1.0, True), ask=(B,)) == {A: True}
    both = {N1: (on_disk("a", pin=True), on_disk("b"))}
    assert pinned_by_cards(seen(state_of(), disks=both)) == {A: True}, "b was not asked for"


@pytest.mark.parametrize(
    ("pinned_by", "says", "nodes", "commands"),
    [
        (None, True, ("n1",), [True]),
        (None, False, ("n1",), []),
        (BY_CARD, True, ("n1",), []),
        ("ann", True, ("n1",), []),
        (BY_CARD, False, ("n1",), [False]),
        (BY_CARD, False, ("n1", "n9"), []),
        ("ann", False, ("n1",), []),
        (None, True, ("n1", "n9"), [True]),
    ],
)
def test_what_cards_ask_for_that_is_not_so_yet(
    pinned_by: str | None, says: bool, nodes: tuple[str, ...], commands: list[bool]
) -> None:
    pins = {} if pinned_by is None else {"a": Pin(model=A, by=pinned_by)}
    seats = {name: NodeSeat(node=NodeId(name), name=name) for name in nodes}
    older = on_disk("a", pin=True, card_at_s=1.0)
    disks = {N1: (on_disk("a", pin=says, card_at_s=2.0), on_disk("b")), N2: (older,)}
    scene = seen(state_of(pins=pins, nodes=seats), disks=disks)
    assert pins_of_cards(scene) == [
        PinModel(command_id=CommandId("card-a"), model=A, pinned=pinned, by=BY_CARD)
        for pinned in commands
    ]


# --- copies of a model ---------------------------------------------------------------------------


def test_the_copies_of_a_model_that_live_ready_ones_first() -> None:
    there = [
        copy("placed"), ready("ready"), ready("draining", status="draining"),
        copy("failed", status="failed"), ready("making", quantizes=MAKING), ready("b", model=B),
    ]  # fmt: skip
    assert [one.instance for one in living(state_of(*there), A)] == ["ready", "placed"]
    assert living(ClusterState(), A) == []


def test_a_copy_is_placed_again_as_it_was() -> None:
    asked = Conditions(min_nodes=2, context_tokens=16)
    found = placement_again(copy(), asked, "again")
    assert found == PlaceModel(
        command_id=CommandId("again-i"), model=A, keep_alive_s=9.0, min_nodes=2, context_tokens=16
    )  # fmt: skip
    assert conditions_of(found) == asked
    pinned = placement_again(copy(pinned=True), asked, "lost")
    assert (pinned.keep_alive_s, pinned.pinned, pinned.command_id) == (None, True, "lost-i")


@pytest.mark.parametrize(
    ("asked", "by_card", "by_kind", "keep_alive_s"),
    [
        (0.0, 7.0, 5.0, 0.0), (3.0, None, 5.0, 3.0), (None, 7.0, 5.0, 7.0), (None, 0.0, 5.0, 0.0),
        (None, None, 5.0, 5.0), (None, None, None, 300.0),
    ],
)  # fmt: skip
def test_how_long_a_copy_idles_is_the_commands_word_its_cards_its_kinds_or_the_policys(
    asked: float | None, by_card: float | None, by_kind: float | None, keep_alive_s: float
) -> None:
    card = on_disk("b", 4, keep_alive_s=by_card)
    kinds = {} if by_kind is None else {card.makes: by_kind}
    scene = seen(state_of(), disks={N1: (card,)}, policy=Policy(keep_alive_by_kind=kinds))
    found = choose(scene, PlacementSpec(B), Claim(B, ((10, NOW),)))
    assert isinstance(found, PoolChoice) and found.placement is not None
    command = WISH.model_copy(update={"keep_alive_s": asked, "pinned": True})
    made = instance_of(command, found.placement, scene.policy, InstanceId("fresh"))
    assert (made.instance, made.model, made.pinned) == ("fresh", B, True)
    assert made.keep_alive_s == keep_alive_s
    assert [(s.rank, s.node, s.first_layer, s.last_layer) for s in made.shards] == [(0, N1, 0, 4)]
