"""What the cards of several nodes say together of one model."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from bus.wire.cards import ModelCard, NodeCard, PartialModel, models_of, parts_text
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


def holder(number: int, *spans: tuple[int, int], digest: str = "one") -> NodeCard:
    """A node with these layers of a model of 8."""
    part = PartialModel(
        model=MODEL, layers=spans, have_bytes=1, size_bytes=2, card=model(digest=digest)
    )
    return node(number, parts=(part,)).card


def test_parts_are_a_model_once_they_have_all_layers_of_the_same_files() -> None:
    first, last = holder(1, (0, 3), (5, 6)), holder(2, (3, 8))
    assert models_of([first, last])[MODEL].digest == "one"
    assert not models_of([first]) and not models_of([first, holder(2, (3, 5), (6, 7))])
    assert not models_of([first, holder(2, (3, 8), digest="other")])
    unknown = last.model_copy(update={"parts": (last.parts[0].model_copy(update={"card": None}),)})
    assert not models_of([first, unknown]), "a part whose card is unknown does not count"
    whole = node(3, models=(model(digest="whole"),)).card
    assert models_of([first, last, whole])[MODEL].digest == "whole"


def test_parts_are_told_with_their_layers() -> None:
    text = parts_text(MODEL, [holder(1, (0, 3), (5, 6)), holder(2, (3, 8)), node(3).card])
    assert text == "box1 holds layers 0 to 2, 5 to 5 of 8, box2 holds layers 3 to 7 of 8"
    assert parts_text(ModelId("other"), [holder(1, (0, 3))]) == ""
