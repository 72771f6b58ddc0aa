"""What doctor says of models that could not be loaded on this node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.wire.cards import NodeCard
from bus.wire.instances import Status
from gateway.cli.doctor.model_findings import model_checks
from gateway.cli.node.node_state import NodeState, parse_state
from tests.harness import node_server


def seen(status: Status) -> NodeState:
    failed = node_server.instance("them/m", status).model_copy(update={"why": "no such tensor"})
    card = NodeCard(
        node=node_server.NODE, name="mini", platform="linux", cores=2, memory_bytes=16 << 30,
        backends=(), mlx_version="", shoal_version="", slots=2, models=(), announced_at_s=0.0,
    )  # fmt: skip
    state = parse_state(node_server.state([], [failed]))
    return replace(state, cards=(card,), node=node_server.NODE)


def test_a_model_that_could_not_be_loaded_here_is_named_with_its_reason() -> None:
    (finding, _) = model_checks(seen("failed"), [])
    assert (finding.name, finding.level) == ("model them/m", "warn")
    assert finding.found == "them/m could not be loaded: no such tensor"
    assert "`shoal load them/m`" in finding.remedy


@pytest.mark.parametrize("status", ["placed", "ready"])
def test_others_are_not_named(status: Status) -> None:
    (finding,) = model_checks(seen(status), [])
    assert finding.level == "ok"


def test_a_failure_on_another_node_is_left_to_that_node() -> None:
    state = seen("failed")
    (finding,) = model_checks(replace(state, node="elsewhere", cards=(
        state.cards[0].model_copy(update={"node": "elsewhere"}),
    )), [])  # fmt: skip
    assert finding.level == "ok"
