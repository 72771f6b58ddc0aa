"""What the cards of several nodes say together of one model."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from bus.wire.cards import ModelCard, models_of
from bus.wire.ids import ModelId
from tests.harness.placement_nodes import MODEL, model, node


def seen(*cards: ModelCard) -> list[ModelCard]:
    """The card that is told, for each order in which nodes with these may be heard of."""
    nodes = [node(number, models=(one,)).card for number, one in enumerate(cards)]
    return [models_of(order)[MODEL] for order in permutations(nodes)]


def test_a_model_is_from_where_the_node_has_it_that_copied_it_from_no_other() -> None:
    pulled = model(origin="pulled", sources=("someone/tiny@1",))
    copied = model(origin="copied", sources=("n1",))
    for found in seen(pulled, copied, copied):
        assert (found.origin, found.sources) == ("pulled", ("someone/tiny@1",))
    assert {one.origin for one in seen(copied, copied)} == {"copied"}


def test_what_the_newest_card_says_to_requests_counts() -> None:
    def said(alias: str, at_s: float) -> dict[str, Any]:
        """The fields of a card with an alias."""
        return {"aliases": (ModelId(alias),), "card_at_s": at_s}

    for found in seen(model(**said("a", 1.0)), model(**said("b", 2.0)), model()):
        assert found.aliases == (ModelId("b"),)
