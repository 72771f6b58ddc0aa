"""Which pulls of all nodes are listed, and which can be changed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bus.wire.errors import BadMessage, OwnerSilent, Unavailable
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullReading, PullState
from gateway.control.pulling import answer_pull_changes, change_pulls, nodes_pulling, pulls_of
from gateway.control.pulling import changes as pull_changes
from tests.harness.called_nodes import CalledNodes

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


def changed_by(answer: Exception, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Change a pull of this node, whose worker answers so."""

    async def ask(*_: Any) -> Any:
        raise answer

    monkeypatch.setattr(pull_changes, "ask_service", ask)
    calls = CalledNodes("n1")["n1"]
    bus: Any = SimpleNamespace(endpoints=SimpleNamespace(worker="w"))
    answer_pull_changes(calls, bus)
    return asyncio.run(change_pulls(calls, [NodeId("n1")], M, "pause", key="")).replies["n1"]


def test_a_silent_worker_and_one_of_another_version_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(OwnerSilent, match="the worker of node n1 did not answer within 25 s"):
        changed_by(Unavailable("no answer"), monkeypatch)
    assert "unknown answer: kind" in changed_by(BadMessage("kind"), monkeypatch).why
