"""Which nodes verify and propose, by their cards."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bus.models.role_plan import (
    FAR_S,
    NEAR_S,
    NGRAM,
    MissingRole,
    RolePlan,
    choose_proposer,
    plan_roles,
    roles_of,
    round_trips_of,
)
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankReady, Shard
from bus.wire.messages.readings import LinkReading, MeasuredLink
from bus.wire.messages.requests import DraftWeights
from tests.harness.fleets import NOW_S, card

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
BIG, SMALL, VECTORS = ModelId("big"), ModelId("small"), ModelId("vectors")


def model(name: str, weights: int, speed: float = 0.0, **more: Any) -> ModelCard:
    return ModelCard(
        **{
            "model": ModelId(name), "path": "/m", "family": "qwen3", "layers": 4,
            "weights_bytes": weights, "size_bytes": weights, "kv_bytes_per_token": 1,
            "context_tokens": 4096, "vocabulary": 100, "tokens_per_s": speed, **more,
        }
    )  # fmt: skip


def node(name: str, *models: ModelCard, memory: int = 8, **more: Any) -> NodeCard:
    return card(NOW_S, name, name, models=models, memory_bytes=memory, **more)


def apart(**seconds: float) -> dict[frozenset[NodeId], float]:
    """Round trips by names such as `n1_n2`."""
    return {frozenset(map(NodeId, name.split("_"))): s for name, s in seconds.items()}


def planned(*cards: NodeCard, **more: Any) -> RolePlan:
    plan = plan_roles(cards, more.pop("trips", {}), **more)
    assert isinstance(plan, RolePlan)
    return plan


BIG_AT, SMALL_AT = model("big", 1000, 10.0), model("small", 100, 90.0)


def test_the_roles_of_a_model_follow_from_its_card() -> None:
    assert roles_of(BIG_AT) == ("verifier",)
    assert roles_of(SMALL_AT, [BIG_AT]) == ("verifier", "proposer")
    assert roles_of(BIG_AT, [SMALL_AT, BIG_AT]) == ("verifier",), "a draft is smaller"
    assert roles_of(model("s", 1, vocabulary=99), [BIG_AT]) == ("verifier",), "other tokens"
    tools = model("t", 1000, capabilities=("completion", "tools"))
    assert roles_of(tools) == ("verifier", "tool")
    assert roles_of(model("v", 10, makes="embedding"), [BIG_AT]) == ("embedder",)
    for other in ({"compatible_backends": ("llama-cpu",)}, {"origin": "engine"}):
        assert roles_of(model("g", 10, **other), [BIG_AT]) == (), other


@pytest.mark.parametrize(
    ("trip_s", "node_of_proposer", "colocated"),
    [(0.0005, "n2", False), (NEAR_S, "n2", False), (0.016, "n1", True), (0.2, "n1", True)],
)
def test_a_near_remote_proposer_is_preferred_to_one_on_the_verifiers_node(
    trip_s: float, node_of_proposer: str, colocated: bool
) -> None:
    plan = planned(
        node("n1", BIG_AT, SMALL_AT), node("n2", SMALL_AT), verifier=BIG, trips=apart(n1_n2=trip_s)
    )
    assert (plan.proposer.node, plan.colocated) == (node_of_proposer, colocated)
    assert plan.round_trip_s == (None if colocated else trip_s)


@pytest.mark.parametrize(("trip_s", "model_"), [(0.05, SMALL), (FAR_S, SMALL), (0.101, NGRAM)])
def test_without_a_model_on_its_node_a_verifier_takes_one_within_100_ms(
    trip_s: float, model_: ModelId
) -> None:
    plan = planned(
        node("n1", BIG_AT), node("n2", SMALL_AT), verifier=BIG, trips=apart(n1_n2=trip_s)
    )
    assert plan.proposer.model == model_
    assert model_ == SMALL or "101 ms; the limit is 100 ms" in plan.why


def test_an_unmeasured_round_trip_refuses_a_proposer() -> None:
    plan = planned(node("n1", BIG_AT), node("n2", SMALL_AT), verifier=BIG)
    assert plan.proposer.model == NGRAM and "is not measured" in plan.why


def test_a_plan_says_what_the_card_must_name() -> None:
    cards = (node("n1", BIG_AT, SMALL_AT), node("n2", SMALL_AT))
    trips = apart(n1_n2=0.001)
    remote = planned(*cards, verifier=BIG, trips=trips)
    assert "as long as it is loaded there: name it" in remote.why
    away = BIG_AT.model_copy(update={"draft": DraftWeights(model=SMALL, why_not="not here")})
    assert planned(node("n1", away), cards[1], verifier=BIG, trips=trips).why.endswith("there")
    beside = planned(cards[0], verifier=BIG)
    assert beside.colocated and "`draft_model`" in beside.why
    named = BIG_AT.model_copy(update={"draft": DraftWeights(model=SMALL, path="/s")})
    assert "its card names it" in planned(node("n1", named, SMALL_AT), verifier=BIG).why
    ngrams = planned(*cards, verifier=BIG, proposer=NGRAM, trips=trips)
    assert ngrams.colocated and ngrams.proposer.node == N1


def test_the_fastest_measured_verifier_is_chosen_then_memory_then_the_id() -> None:
    slow, fast, unmeasured = model("m", 10, 5.0), model("m", 10, 6.0), model("m", 10)
    assert planned(node("n1", slow), node("n2", fast)).verifier.node == N2
    assert planned(node("n1", unmeasured), node("n2", slow)).verifier.node == N2
    assert planned(node("n1", slow), node("n2", slow, memory=9)).verifier.node == N2
    assert planned(node("n3", slow), node("n2", slow)).verifier.node == N2
    assert planned(node("n1", unmeasured)).verifier.tokens_per_s is None


def test_a_pinned_model_is_honoured_and_a_missing_role_is_typed() -> None:
    cards = (node("n1", BIG_AT, SMALL_AT, model("vectors", 5, makes="embedding")),)
    assert planned(*cards, verifier=BIG).verifier.model == BIG
    assert planned(*cards, verifier=BIG, proposer=SMALL).proposer.model == SMALL
    for pin, role in (
        ({"verifier": ModelId("none")}, "verifier"),
        ({"verifier": VECTORS}, "verifier"),
        ({"verifier": SMALL, "proposer": BIG}, "proposer"),
        ({"verifier": BIG, "proposer": ModelId("none")}, "proposer"),
    ):
        missing = plan_roles(cards, {}, **pin)
        assert isinstance(missing, MissingRole) and missing.role == role
        assert missing.model == pin.get(role) and str(missing.model) in missing.why
    far = plan_roles(
        (node("n1", BIG_AT), node("n2", SMALL_AT)), apart(n1_n2=0.3), verifier=BIG, proposer=SMALL
    )
    assert isinstance(far, MissingRole) and "300 ms" in far.why
    assert plan_roles((), {}) == MissingRole("verifier", None, "no node has a text model for MLX")


def test_a_node_that_cannot_run_models_takes_no_role() -> None:
    broken = node("n1", BIG_AT, cannot_run="MLX is not installed")
    assert isinstance(plan_roles((broken,), {}), MissingRole)
    assert isinstance(plan_roles((node("n1", BIG_AT, backends=("llama-cpu",)),), {}), MissingRole)


def link(peer: NodeId, trip_s: float) -> MeasuredLink:
    return MeasuredLink(peer=peer, latency_s=1e-4, bytes_per_s=1e9, round_trip_s=trip_s)


def test_a_round_trip_is_that_of_the_faster_address_and_of_the_slower_direction() -> None:
    readings = [
        LinkReading(node=N1, links=(link(N2, 0.02), link(N2, 0.01)), measured_at_s=0.0),
        LinkReading(node=N2, links=(link(N1, 0.03), link(N3, 0.0)), measured_at_s=0.0),
    ]
    assert round_trips_of(readings) == apart(n1_n2=0.03), "an unmeasured one is left out"


def ready(name: str, at: NodeId, of: ModelId = SMALL, **more: Any) -> Instance:
    shard = Shard(rank=0, node=at, first_layer=0, last_layer=4, bytes_reserved=1)
    lead = RankReady(rank=0, node=at, process="runner:00", addresses=("tcp://h:1",), pid=1)
    fields = {"status": "ready", "context_tokens": 9, "keep_alive_s": 1.0, "ready": (lead,)}
    return Instance.model_validate(
        {"instance": InstanceId(name), "model": of, "shards": (shard,), **fields, **more}
    )


TARGET = ready("i-big", N1, BIG)
TRIPS = apart(n1_n2=0.03, n1_n3=0.001)


def chosen(*instances: Instance, present: str = "") -> str:
    """The chosen instance, or why there is none."""
    trips, before = {**TRIPS, **apart(n1_n4=0.2)}, InstanceId(present)
    choice = choose_proposer(TARGET, SMALL, (TARGET, *instances), trips, before)
    assert choice == choose_proposer(TARGET, SMALL, (*reversed(instances), TARGET), trips, before)
    return choice if isinstance(choice, str) else choice.instance


def test_a_near_instance_proposes_before_one_at_home_and_that_before_one_further_away() -> None:
    near, home, further = ready("i3", N3), ready("i1", N1), ready("i2", N2)
    assert chosen(further, home, near) == "i3"
    assert chosen(further, home) == "i1"
    assert chosen(further) == "i2"
    assert chosen(ready("i5", NodeId("n5"))) == "i5", "the runner measures what nodes did not"
    assert "200 ms; the limit is 100 ms" in chosen(ready("i4", NodeId("n4")))
    assert chosen(further, ready("i6", N2), present="i6") == "i6", "it stays"
    assert chosen(home, ready("i6", N2), present="i6") == "i1", "unless a better one is ready"


def test_only_ready_instances_of_the_draft_model_that_stay_propose() -> None:
    for other in (
        ready("i3", N3, status="draining"),
        ready("i3", N3, status="placed"),
        ready("i3", N3, ready=()),
        ready("i3", N3, yields_to="other"),
        ready("i3", N3, of=BIG),
    ):
        assert chosen(other) == "no instance of the draft model small is ready"


def fleets(count: int) -> None:
    """Plans of random fleets, made anew in other orders of nodes and models."""
    draw = random.Random(103)
    models = [
        model(f"m{size}{kind}", size, draw.choice((0.0, 10.0, 20.0)), vocabulary=100 + kind)
        for size in (10, 20, 30) for kind in (0, 1) for _ in range(3)
    ]  # fmt: skip
    pool = {
        name: [
            node(name, *draw.sample(models, draw.randint(0, 4)), memory=draw.choice((8, 16)))
            for _ in range(40)
        ]
        for name in ("n1", "n2", "n3", "n4", "n5")
    }
    roles = {"plan": 0, "verifier": 0, "proposer": 0, "remote": 0}
    for _ in range(count):
        names = draw.sample(sorted(pool), draw.randint(1, 5))
        cards = [draw.choice(pool[name]) for name in names]
        pairs = [(a, b) for a in names for b in names if a < b]
        trips = {frozenset(map(NodeId, pair)): draw.choice((0.001, 0.05, 0.2)) for pair in pairs}
        pin = draw.choice(({}, {"verifier": ModelId("m300")}, {"proposer": ModelId("m100")}))
        plan = plan_roles(cards, trips, **pin)
        turned = [
            each.model_copy(update={"models": tuple(reversed(each.models))})
            for each in reversed(cards)
        ]
        assert plan_roles(turned, dict(reversed(trips.items())), **pin) == plan
        if isinstance(plan, MissingRole):
            roles[plan.role] += 1
            continue
        roles["plan"] += 1
        roles["remote"] += not plan.colocated
        assert plan.verifier.model == pin.get("verifier", plan.verifier.model)
        assert plan.proposer.model == pin.get("proposer", plan.proposer.model)
        assert (plan.verifier.node == plan.proposer.node) == plan.colocated
        assert plan.colocated or (plan.round_trip_s or 1.0) <= FAR_S
    assert min(roles.values()) > count // 100, f"each outcome occurs: {roles}"


def test_equal_cards_in_any_order_give_equal_plans_in_10_000_fleets() -> None:
    fleets(10_000)
