"""Which pulls of all nodes are listed, and which can be changed."""

from __future__ import annotations

from typing import Any

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullReading, PullState
from gateway.control.pulling import nodes_pulling, pulls_of

M = ModelId("someone/model")


def state(phase: Any, **more: Any) -> PullState:
    return PullState(model=M, phase=phase, **more)


def reading(node: str, *pulls: PullState) -> PullReading:
    return PullReading(node=NodeId(node), pulls=pulls)


def test_a_node_with_several_pulls_of_a_model_shows_the_one_that_runs_else_the_last() -> None:
    failed, paused = state("failed", reason="broken"), state("failed", reason="paused")
    running = state("fetching")
    assert pulls_of([reading("n1", running, failed)]) == [("n1", running)]
    assert pulls_of([reading("n1", failed, running)]) == [("n1", running)]
    assert pulls_of([reading("n1", failed, paused)]) == [("n1", paused)]


def test_pulls_are_listed_by_model_and_node() -> None:
    other = PullState(model=ModelId("a/b"), phase="copying")
    rows = pulls_of([reading("n2", state("waiting")), reading("n1", state("done"), other)])
    assert [(node, pull.model) for node, pull in rows] == [("n1", "a/b"), ("n1", M), ("n2", M)]


def test_running_and_recorded_pulls_can_be_changed_and_ended_ones_cannot() -> None:
    pulls = [
        ("running", state("fetching")),
        ("paused", state("failed", reason="paused", background=True)),
        ("gone", state("failed", reason="cancelled")),
        ("done", state("done")),
    ]
    listed = pulls_of([reading(node, pull) for node, pull in pulls])
    assert nodes_pulling(M, listed) == ["paused", "running"]
    assert nodes_pulling(ModelId("x/y"), listed) == []
