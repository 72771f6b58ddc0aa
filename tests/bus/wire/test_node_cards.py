"""What a node announces of itself, as it counts where it is heard."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bus.wire.cards import AHEAD_S, NodeCard, as_received
from bus.wire.ids import NodeId
from bus.wire.messages.readings import CardReading
from gateway.cluster.readings import ClusterReadings
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
        heard = as_received(card(at_s, name), NOW_S + second)
        readings.heard(CardReading(card=heard), float(second))
        sources.heard(heard, float(second))
    assert [one.name for one in readings.cards(1.0)] == ["right"]
    assert sources.cards[NodeId("n1")][0].name == "right"


def test_a_clock_that_is_a_little_ahead_is_believed() -> None:
    for at_s in (0.0, NOW_S, NOW_S + AHEAD_S):
        assert as_received(card(at_s), NOW_S).announced_at_s == at_s


def test_a_card_without_a_node_id_is_refused_by_the_fields_name() -> None:
    with pytest.raises(ValidationError, match="node"):
        card(NOW_S, node="")
