"""What the command line makes of a node's state."""

from __future__ import annotations

from typing import Any

from bus.ids import ModelId, NodeId
from bus.messages.readings import FetchPhase, FetchReading, WeightsReading
from gateway.cli.instances import _row  # pyright: ignore[reportPrivateUsage]
from gateway.cli.node_state import NodeState, Progress, parse_state
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
