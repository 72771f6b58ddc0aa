"""A name behind a model's means one of its adapters, where nothing else has that name."""

from __future__ import annotations

from bus.wire.cards import AdapterCard, NodeCard
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.requests import GenerationRequest, TextPrompt
from gateway.requests.adapters import AdapterBook
from gateway.requests.routing import adapter_named, affinity_of
from runner.schedule.prefixes import TokenChain, kept_apart
from tests.harness.placement_nodes import model, node

MODELS = [ModelId("m"), ModelId("org/other"), ModelId("m:v2"), ModelId("plain")]
OWN = {ModelId("m"): ["pirate", "Formal", "v2"], ModelId("org/other"): ["pirate"]}


def test_names_mean_adapters_of_models_by_every_way_to_name_the_model() -> None:
    for name, wanted in {
        "m:pirate": ("m", "pirate"),
        "M:PIRATE": ("m", "pirate"),
        "m:formal": ("m", "Formal"),
        "library/m:pirate": ("m", "pirate"),
        "m:pirate:latest": ("m", "pirate"),
        "other:pirate": ("org/other", "pirate"),
        "org/other:pirate": ("org/other", "pirate"),
        "m:strange": ("m", "strange"),
        "plain:pirate": None,
        "pirate": None,
        "nothing:pirate": None,
        ":pirate": None,
    }.items():
        assert adapter_named(name, MODELS, OWN) == wanted, name


def cards() -> list[NodeCard]:
    one, two = (
        AdapterCard(name="v2", rank=4, size_bytes=1),
        AdapterCard(name="pirate", rank=8, size_bytes=2),
    )
    first, second = (model(adapters=own) for own in ((one, two), (two,)))
    return [node(1, models=(first,)).card, node(2, models=(second,)).card]


def test_a_model_of_that_name_and_a_derived_one_go_first() -> None:
    book = AdapterBook(cards)
    assert book.find("m:pirate", MODELS, None) == "pirate"
    assert book.find("m:v2", MODELS, None) is None
    assert book.find("m:v2", MODELS[:2], None) == "v2"
    assert book.find("m", MODELS, None) is None
    derived = DerivedModel(name=ModelId("m:pirate"), base=ModelId("m"))
    assert book.find("m:pirate", MODELS, derived) is None
    assert book.find("x", MODELS, derived.model_copy(update={"adapter": "v2"})) == "v2"
    assert set(book.beside(ModelId("m"))) == {"pirate", "v2"}
    assert book.nodes_with(ModelId("m"), "pirate") == {NodeId("n1"), NodeId("n2")}
    assert len(book.nodes_with(ModelId("m"), "v2")) == 1


def test_prompts_of_two_adapters_share_neither_prefixes_nor_a_preferred_instance() -> None:
    asked = GenerationRequest.model_validate(
        {"request_id": "r", "model": "m", "prompt": TextPrompt(text="hello")}
    )
    kinds = [
        asked.model_copy(update=said)
        for said in (
            {},
            {"adapter": "a"},
            {"adapter": "b"},
            {"key_id": "k"},
            {"key_id": "k", "adapter": "a"},
        )
    ]
    assert len({affinity_of(one) for one in kinds[:3]}) == 3
    chains = [TokenChain(range(64), seed=kept_apart(one)) for one in kinds]
    assert len({chain.hashes[0] for chain in chains}) == 5
    assert chains[0].hashes == TokenChain(range(64)).hashes
