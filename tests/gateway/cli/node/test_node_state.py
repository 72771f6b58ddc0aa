"""What the command line makes of a node's state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.wire.cards import NodeCard, PartialModel
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import FetchPhase, FetchReading, WeightsReading
from gateway.cli.node.node_state import NodeState, Progress, parse_state
from gateway.cli.output.errors import CliError
from gateway.cli.verbs.models.instances import _row  # pyright: ignore[reportPrivateUsage]
from gateway.cli.verbs.models.models import part_row
from tests.harness import node_server


def parsed(*weights: WeightsReading, status: Any = "placed") -> NodeState:
    one = node_server.instance("m", status)
    body = node_server.state([], [one])
    body["telemetry"]["runners"] = []
    body["telemetry"]["weights"] = [reading.model_dump(mode="json") for reading in weights]
    return parse_state(body)


def fetching(node: NodeId, phase: FetchPhase, done: int) -> WeightsReading:
    one = FetchReading(
        model=ModelId("m"), phase=phase, done_bytes=done, total_bytes=200, bytes_per_s=1.0
    )
    return WeightsReading(node=node, fetches=(one,))


def test_an_instance_whose_weights_are_on_their_way_shows_how_far_they_are() -> None:
    state = parsed(fetching(node_server.NODE, "fetching", 86))
    (one,) = state.instances
    assert state.progress_of(one) == Progress("fetching", 86, 200)
    assert _row(state, one)[1] == "fetching 43 %"


def test_other_nodes_fetches_and_those_that_are_over_show_nothing() -> None:
    others = (
        fetching(NodeId("elsewhere"), "fetching", 86),
        fetching(node_server.NODE, "done", 200),
    )
    for state in (
        parsed(*others),
        parsed(fetching(node_server.NODE, "checking", 1), status="ready"),
    ):
        (one,) = state.instances
        assert state.progress_of(one) == Progress("starting", 0, 0)
        assert _row(state, one)[1] == one.status


def test_parts_of_models_are_told_apart_from_models_with_their_bytes() -> None:
    part = PartialModel(
        model=ModelId("org/m"), layers=((0, 2), (4, 5)), have_bytes=10**9, size_bytes=4 * 10**9
    )
    card = NodeCard(
        node=NodeId("n1"), name="box", platform="p", cores=1, memory_bytes=1, backends=(),
        mlx_version="", shoal_version="", slots=1, parts=(part,), announced_at_s=1.0,
    )  # fmt: skip
    state = replace(parsed(), cards=(card,))
    assert state.parts == [("box", part)] and state.models == {}
    row = part_row(*state.parts[0])
    assert row[:2] == ("org/m", "partly")
    assert row[7] == "layers 0 to 1, 4 to 4 on box"
    assert "of" in row[5]
    with pytest.raises(CliError, match="box holds layers 0 to 1, 4 to 4") as error:
        state.find_model("org/m")
    assert "shoal pull org/m" in error.value.remedy
