"""Why a model stays: each reason alone, over the same store in which all else may go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.wire.cards import ModelCard, NodeCard, PartialModel
from bus.wire.ids import ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.readings import (
    FetchReading,
    PullReading,
    PullState,
    WeightsReading,
)
from bus.wire.messages.weights import Quantizing
from tests.recorded.specimens import least
from worker.eviction import Holding, Surroundings, holdings_of

M, OTHER = ModelId("someone/model"), ModelId("someone/other")
N2, N3, N4 = NodeId("n2"), NodeId("n3"), NodeId("n4")
MODELS = "/home/data/models"
CARD = least(ModelCard).model_copy(
    update={
        "model": M,
        "path": f"{MODELS}/{M}",
        "origin": "pulled",
        "digest": "d",
        "size_bytes": 100,
        "modified_at_s": 50,
    }
)
PART = PartialModel(
    model=M, layers=((0, 2),), have_bytes=40, size_bytes=100, path=f"{MODELS}/.staging/d"
)


def node(name: NodeId, *models: ModelCard, gives: bool = True) -> NodeCard:
    addresses = (f"tcp://10.0.0.1:{24155}",) if gives else ()
    update = {"node": name, "name": name, "models": models, "weights_addresses": addresses}
    return least(NodeCard).model_copy(update=update)


AROUND = Surroundings(models=MODELS, others={N2: node(N2, CARD)})


def held(around: Surroundings = AROUND, used: int = 0, **changes: Any) -> Holding:
    (found,) = holdings_of([CARD.model_copy(update=changes)], [], {M: used}, around)
    return found


def instance(model: ModelId, **changes: Any) -> Instance:
    return least(Instance).model_copy(update={"model": model, "status": "ready", **changes})


def fetch(model: ModelId, phase: str) -> WeightsReading:
    update = {"model": model, "phase": phase}
    return WeightsReading(node=N3, fetches=(least(FetchReading).model_copy(update=update),))


def pulls(model: ModelId, phase: str) -> PullReading:
    return PullReading(node=N3, pulls=(PullState(model=model, phase=phase),))  # pyright: ignore[reportArgumentType]


def test_what_was_pulled_or_copied_and_lies_elsewhere_may_go() -> None:
    for origin in ("pulled", "copied"):
        found = held(origin=origin)
        assert (found.why, found.what, found.keepers) == ("", "fetched", (N2,))
    assert (held().used_at_s, held(used=70).used_at_s) == (50, 70)


@pytest.mark.parametrize(
    ("origin", "what"),
    [("put", "put"), ("cache", "put"), ("bundled", "bundled"), ("derived", "made")],
)
def test_what_was_not_fetched_stays(origin: str, what: str) -> None:
    found = held(origin=origin)
    assert found.why and found.what == what


def test_what_lies_in_a_folder_that_the_settings_name_stays() -> None:
    found = held(path="/mnt/models/someone/model")
    assert found.what == "put" and MODELS in found.why


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"instances": [instance(M)]}, "is loaded or loading"),
        ({"instances": [instance(M, status="placed")]}, "is loaded or loading"),
        ({"instances": [instance(M, status="draining")]}, "is loaded or loading"),
        (
            {"instances": [instance(OTHER, quantizes=Quantizing(source=M, bits=4))]},
            "is loaded or loading",
        ),
        ({"pins": {M}}, "the model is pinned"),
        ({"weights": [fetch(M, "fetching")]}, "is downloading"),
        ({"pulls": [pulls(M, "checking")]}, "is downloading"),
        ({"seated": {M}}, "has not ended yet"),
        ({"verifying": {M}}, "is being verified"),
        ({"keeps_all": True}, "store = true"),
        (
            {"stay_reasons": {CARD.path: "card.toml in its folder was added by a person"}},
            "card.toml",
        ),
        ({"others": {}}, "no other connected node"),
        ({"others": {N2: node(N2)}}, "no other connected node"),
        (
            {"others": {N2: node(N2, CARD.model_copy(update={"digest": "e"}))}},
            "no other connected node",
        ),
        ({"offline": True, "others": {N2: node(N2, CARD, gives=False)}}, "offline = true"),
    ],
)
def test_each_reason_keeps_it_alone(changes: dict[str, Any], words: str) -> None:
    assert words in held(replace(AROUND, **changes)).why


@pytest.mark.parametrize(
    "changes",
    [
        {"instances": [instance(OTHER), instance(M, status="failed")]},
        {"pins": {OTHER}},
        {"weights": [fetch(M, "done"), fetch(OTHER, "fetching")]},
        {"pulls": [pulls(M, "failed"), pulls(OTHER, "fetching")]},
        {"seated": {OTHER}, "verifying": {OTHER}, "stay_reasons": {"/elsewhere": "why"}},
        {"offline": True},
        {"others": {N2: node(N2, CARD, gives=False)}},
    ],
)
def test_what_concerns_others_keeps_nothing(changes: dict[str, Any]) -> None:
    assert held(replace(AROUND, **changes)).why == ""


def test_what_was_copied_needs_a_node_that_gives_it() -> None:
    around = replace(AROUND, others={N2: node(N2, CARD, gives=False)})
    assert held(around, origin="copied").why == "no other node offers it"


def test_nodes_that_keep_everything_are_asked_first_then_those_where_it_was_put() -> None:
    put = CARD.model_copy(update={"origin": "put"})
    others = {N2: node(N2, CARD), N3: node(N3, put), N4: node(N4, CARD)}
    assert held(replace(AROUND, others=others, stores={N4})).keepers == (N4, N3, N2)


def test_layers_of_a_model_go_while_a_node_gives_the_whole() -> None:
    (part,) = holdings_of([], [PART], {}, AROUND)
    assert (part.why, part.what, part.in_part, part.size_bytes) == ("", "fetched", True, 40)
    for changes in ({"others": {}}, {"others": {N2: node(N2, CARD, gives=False)}}, {"pins": {M}}):
        (part,) = holdings_of([], [PART], {}, replace(AROUND, **changes))
        assert part.why
