"""What a node announces of itself, as it counts where it is heard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bus.wire import cards
from bus.wire.cards import NodeCard
from bus.wire.ids import NodeId
from bus.wire.messages.readings import CardReading
from gateway.view.readings import ClusterReadings
from master.decisions.observations import Observations
from worker.transfer.sources import Sources

NOW_S = 1_800_000_000.0


def card(at_s: float, name: str = "box", node: str = "n1") -> NodeCard:
    return NodeCard(
        node=NodeId(node), name=name, platform="linux", cores=2, memory_bytes=1,
        backends=("mlx-cpu",), mlx_version="", shoal_version="", slots=1, announced_at_s=at_s,
    )  # fmt: skip


def test_a_card_dated_ahead_hides_none_of_its_nodes_later_ones() -> None:
    readings, sources = ClusterReadings(), Sources(NodeId("me"))
    for second, (at_s, name) in enumerate([(NOW_S + 400 * 86_400, "ahead"), (NOW_S + 1, "right")]):
        heard = cards.as_received(card(at_s, name), NOW_S + second)
        readings.heard(CardReading(card=heard), float(second))
        sources.take_card(heard, float(second))
    assert [one.name for one in readings.cards(1.0)] == ["right"]
    assert sources.cards[NodeId("n1")][0].name == "right"


def test_a_clock_that_is_a_little_ahead_is_believed() -> None:
    for at_s in (0.0, NOW_S, NOW_S + cards.AHEAD_S):
        assert cards.as_received(card(at_s), NOW_S).announced_at_s == at_s


CARDS = st.builds(
    card, st.sampled_from([NOW_S, NOW_S + 1]), st.sampled_from(["a", "b", "c"]), st.just("n1")
)


def merged(*heard: NodeCard) -> NodeCard:
    known = heard[0]
    for one in heard[1:]:
        known = one if cards.supersedes(one, known) else known
    return known


@given(CARDS, CARDS, CARDS)
def test_of_two_cards_one_wins_in_whatever_order_and_group_they_are_heard(
    one: NodeCard, other: NodeCard, third: NodeCard
) -> None:
    assert merged(one, other) == merged(other, one)
    assert merged(merged(one, other), third) == merged(one, merged(other, third))
    assert merged(one, one) == one and cards.supersedes(one, one), "heard again, it is heard"
    assert merged(one, other).announced_at_s == max(one.announced_at_s, other.announced_at_s)


def test_all_who_hear_two_cards_of_one_stamp_keep_the_same() -> None:
    for first, second in (("a", "b"), ("b", "a")):
        readings, sources, observations = ClusterReadings(), Sources(NodeId("me")), Observations()
        for name in (first, second):
            readings.heard(CardReading(card=card(NOW_S, name)), 0.0)
            sources.take_card(card(NOW_S, name), 0.0)
            observations.hear(CardReading(card=card(NOW_S, name)), 0.0)
        assert [one.name for one in readings.cards(0.0)] == ["b"]
        assert sources.cards[NodeId("n1")][0].name == "b"
        assert observations.cards[NodeId("n1")][0].name == "b"


def test_a_card_without_a_node_id_is_refused_by_the_fields_name() -> None:
    with pytest.raises(ValidationError, match="node"):
        card(NOW_S, node="")
