"""What nodes announce of themselves, as it counts where it is received."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bus.client import Speaker
from bus.membership.card_book import CardBook, is_newer, is_withdrawn, merge, withdrawal
from bus.wire import cards
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import BadMessage
from bus.wire.ids import NodeId
from bus.wire.messages.readings import CardReading
from gateway.view.readings import ClusterReadings
from master.decisions.observations import Observations
from tests.harness.fleets import NOW_S, card
from worker.transfer.sources import Sources

N1 = NodeId("n1")


def test_a_card_dated_ahead_hides_its_nodes_later_ones_for_a_minute_at_most() -> None:
    readings, sources = ClusterReadings(), Sources(NodeId("me"))
    ahead, right = NOW_S + 400 * 86_400, NOW_S + cards.AHEAD_S + 1
    for second, (at_s, name) in ((0.0, (ahead, "ahead")), (61.0, (right, "right"))):
        received = cards.as_received(card(at_s, name), NOW_S + second)
        readings.heard(CardReading(card=received), second)
        sources.take_card(received, second)
    assert [each.name for each in readings.cards(61.0)] == ["right"]
    assert sources.cards[N1].card.name == "right"


@given(st.floats(-200, 200), st.floats(0.001, 60), st.floats(0, 5))
def test_the_order_of_a_nodes_cards_stays_however_far_its_clock_is_ahead(
    ahead_s: float, later_s: float, delay_s: float
) -> None:
    first = cards.as_received(card(NOW_S + ahead_s), NOW_S + delay_s)
    second = cards.as_received(card(NOW_S + ahead_s + later_s), NOW_S + delay_s + later_s)
    assert is_newer(second, first)


def test_a_clock_that_is_a_little_ahead_is_believed() -> None:
    for at_s in (0.0, NOW_S, NOW_S + cards.AHEAD_S):
        assert cards.as_received(card(at_s), NOW_S).announced_at_s == at_s


CARDS = st.builds(
    card,
    st.sampled_from([NOW_S, NOW_S + 1]),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["n1", "n2", "n3"]),
)
FLEETS = st.lists(CARDS, max_size=6).map(lambda drawn: {each.node: each for each in drawn})


@given(FLEETS, FLEETS, FLEETS)
def test_the_merge_is_commutative_associative_and_idempotent(
    first: dict[NodeId, NodeCard], second: dict[NodeId, NodeCard], third: dict[NodeId, NodeCard]
) -> None:
    assert merge(first, second) == merge(second, first)
    assert merge(merge(first, second), third) == merge(first, merge(second, third))
    assert merge(first, first) == first


@given(st.lists(CARDS, max_size=8), st.randoms(use_true_random=False))
def test_a_book_holds_the_merge_of_its_cards_in_any_order_of_arrival(
    arriving: list[NodeCard], random: Any
) -> None:
    shuffled = [*arriving, *arriving]
    random.shuffle(shuffled)
    book, expected = CardBook(), dict[NodeId, NodeCard]()
    for each in shuffled:
        book.take(each, 0.0)
    for each in arriving:
        expected = merge(expected, {each.node: each})
    assert book.living(0.0) == expected


@given(CARDS, CARDS)
def test_of_two_cards_of_a_node_at_most_one_is_strictly_newer(
    first: NodeCard, second: NodeCard
) -> None:
    assert not is_newer(first, first)
    assert is_newer(first, second) + is_newer(second, first) == (first != second) or (
        first.node != second.node
    )


def test_a_nodes_own_card_is_never_replaced_by_that_of_others() -> None:
    mine, forged = card(NOW_S, "mine"), card(NOW_S + 50, "forged")
    assert merge({N1: mine}, {N1: forged}, N1) == {N1: mine}
    assert merge({}, {N1: forged}, N1) == {}, "not even while it has none of its own"
    assert merge({N1: mine}, {N1: forged}) == {N1: forged}


def test_a_card_expires_strictly_after_its_ttl() -> None:
    book = CardBook()
    book.take(card(NOW_S), 10.0)
    assert book.living(130.0) and not book.living(130.001)
    assert book.recent(610.0) and not book.recent(610.001)


def test_a_repeated_card_is_not_renewed() -> None:
    book = CardBook()
    assert book.take(card(NOW_S), 0.0) and not book.take(card(NOW_S), 100.0)
    assert not book.living(121.0)


def test_an_expired_card_gives_way_to_one_of_a_clock_that_was_set_back() -> None:
    book = CardBook()
    book.take(card(NOW_S, "before"), 0.0)
    assert not book.take(card(NOW_S - 500, "after"), 120.0)
    assert book.take(card(NOW_S - 500, "after"), 120.5)


def test_a_goodbye_withdraws_a_card_everywhere_and_outdates_cards_on_their_way() -> None:
    goodbye = withdrawal(card(NOW_S), NOW_S - 5)
    assert is_withdrawn(goodbye) and is_newer(goodbye, card(NOW_S))
    readings, sources, observations = ClusterReadings(), Sources(NodeId("me")), Observations()
    for at, each in enumerate((card(NOW_S), goodbye, card(NOW_S))):
        readings.heard(CardReading(card=each), float(at))
        sources.take_card(each, float(at))
        observations.hear(CardReading(card=each), float(at))
    assert not readings.cards(2.0) and not readings.models(2.0)
    assert not sources.living(2.0)
    assert not observations.living_cards(2.0) and not observations.unheard_cards(2.0)
    back = card(NOW_S + 9, "back")
    assert observations.hear(CardReading(card=back), 9.0) is False
    assert observations.living_cards(9.0) == {N1: back}, "the node may return"


def test_a_snapshot_lists_this_node_first_and_then_the_others_by_id() -> None:
    readings = ClusterReadings(own=NodeId("n2"))
    for node in ("n3", "n2", "n1"):
        readings.heard(CardReading(card=card(NOW_S, node=node)), 0.0)
    assert [each.node for each in readings.cards(0.0)] == ["n2", "n1", "n3"]


def test_all_who_receive_two_cards_of_one_stamp_keep_the_same() -> None:
    for names in (("a", "b"), ("b", "a")):
        readings, sources, observations = ClusterReadings(), Sources(NodeId("me")), Observations()
        for name in names:
            readings.heard(CardReading(card=card(NOW_S, name)), 0.0)
            sources.take_card(card(NOW_S, name), 0.0)
            observations.hear(CardReading(card=card(NOW_S, name)), 0.0)
        assert [each.name for each in readings.cards(0.0)] == ["b"]
        assert sources.cards[N1].card.name == observations.cards[N1].card.name == "b"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node", ""),
        ("ttl_s", 0.0),
        ("ttl_s", -1.0),
        ("ttl_s", float("inf")),
        ("memory_bytes", -5),
        ("announced_at_s", float("nan")),
        ("announced_at_s", float("inf")),
    ],
)
def test_the_codec_refuses_a_bad_card_by_the_fields_name(field: str, value: Any) -> None:
    speaker = Speaker(N1, "worker", "boot")  # type: ignore[arg-type]
    bad = card(NOW_S).model_copy(update={field: value})
    frame = encode(Envelope(speaker.node, "worker", speaker.boot, 1, CardReading(card=bad)))
    with pytest.raises(BadMessage, match=field):
        decode(frame)


@pytest.mark.parametrize(
    "fault", [{"model": ""}, {"weights_bytes": -1}, {"tokens_per_s": -1.0}, {"load_s": -1.0}]
)
def test_a_model_card_without_a_name_or_with_a_negative_figure_is_refused(
    fault: dict[str, Any],
) -> None:
    fields = {
        "model": "m", "path": "/m", "family": "f", "layers": 1, "weights_bytes": 1,
        "size_bytes": 1, "kv_bytes_per_token": 1, "context_tokens": 1, "vocabulary": 1,
    }  # fmt: skip
    assert ModelCard.model_validate(fields)
    with pytest.raises(ValidationError, match=next(iter(fault))):
        ModelCard.model_validate({**fields, **fault})


def test_the_order_of_equal_stamps_does_not_depend_on_the_order_of_fields() -> None:
    body = card(NOW_S, "b").model_dump(mode="json")
    turned = NodeCard.model_validate_json(json.dumps(dict(reversed(body.items()))))
    assert not is_newer(turned, card(NOW_S, "b")) and is_newer(turned, card(NOW_S, "a"))
