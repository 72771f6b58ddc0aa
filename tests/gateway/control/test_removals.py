"""Models deleted here and at other nodes, over real folders; only the bus is a stand-in."""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bus.models.held_models import FolderKept
from bus.wire.cards import ModelCard, NodeCard, PassedOver
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import (
    CardReading,
    FetchReading,
    PullReading,
    PullState,
    WeightsReading,
)
from gateway.control.removals import Removals
from gateway.view.readings import ClusterReadings
from tests.harness.called_nodes import CalledNodes
from tests.recorded.specimens import least

M = ModelId("m")


class Cluster:
    """Nodes `a` and `b` that have the model; `c` has it too and is down."""

    def __init__(self, tmp_path: Path) -> None:
        self.readings, self.instances = ClusterReadings(), dict[str, Any]()
        nodes = CalledNodes("a", "b", down="c")
        for name in "abc":
            folder = tmp_path / name / "models" / "m"
            folder.mkdir(parents=True)
            model = least(ModelCard).model_copy(update={"model": M, "path": str(folder)})
            card = least(NodeCard).model_copy(
                update={"node": NodeId(name), "name": f"node-{name}", "models": (model,)}
            )
            self.readings.heard(CardReading(card=card), 0.0)
        for name in "ab":
            bus: Any = SimpleNamespace(
                speaker=SimpleNamespace(node=NodeId(name)),
                state=SimpleNamespace(instances=self.instances),
                reactor=SimpleNamespace(now=lambda: 1.0),
                log=SimpleNamespace(info=lambda *_, **__: None),
            )
            models = str(tmp_path / name / "models")
            made = Removals(bus, self.readings, nodes[name], models)
            if name == "a":
                self.a = made

    def load(self) -> None:
        self.instances["i"] = SimpleNamespace(model=M, reads=M, status="placed", instance="i")


def test_a_model_goes_from_all_nodes_that_are_there_and_the_others_are_named(
    tmp_path: Path,
) -> None:
    found = asyncio.run(Cluster(tmp_path).a.everywhere(M, ""))
    assert [(one.name, one.deleted) for one in found] == [
        ("node-a", True), ("node-b", True), ("node-c", False),
    ]  # fmt: skip
    assert "node c is not connected" in found[2].why
    left = {path.parent.parent.name for path in tmp_path.glob("*/models/m")}
    assert left == {"c"} and not list(tmp_path.glob("[ab]/models/.staging"))


def test_what_is_loaded_or_on_its_way_stays(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    fetch = least(FetchReading).model_copy(update={"model": M, "phase": "fetching"})
    cluster.readings.heard(WeightsReading(node=NodeId("b"), fetches=(fetch,)), 1.0)
    with pytest.raises(FolderKept, match="node-b is downloading"):
        asyncio.run(cluster.a.here(M))
    cluster.load()
    assert not any(one.deleted for one in asyncio.run(cluster.a.everywhere(M, "")))
    assert len(list(tmp_path.glob("*/models/m"))) == 3


def test_what_came_of_a_pull_goes_by_the_models_name_unless_it_is_under_way(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    folder = tmp_path / "a" / "models" / ".pulling" / "o--p@c"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    part = PassedOver(name="o/p", path=str(folder), why="w", remedy="r", reason="pulled_in_part")
    known = least(NodeCard)
    later = {"passed_over": (part,), "announced_at_s": known.announced_at_s + 1.0}
    card = known.model_copy(update={"node": NodeId("a"), **later})
    cluster.readings.heard(CardReading(card=card), 0.0)
    model = ModelId("o/p")
    pull = PullState(model=model, phase="fetching")
    cluster.readings.heard(PullReading(node=NodeId("b"), pulls=(pull,)), 1.0)
    with pytest.raises(FolderKept, match="node-b is downloading"):
        asyncio.run(cluster.a.here(model))
    cluster.readings.heard(PullReading(node=NodeId("b"), pulls=()), 1.0)
    with open(folder / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FolderKept, match="a pull is writing to"):
            asyncio.run(cluster.a.here(model))
    assert folder.is_dir()
    assert asyncio.run(cluster.a.everywhere(model, ""))[0].deleted
    assert not folder.exists()


def test_a_model_that_is_placed_while_it_is_deleted_is_moved_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path)
    checks = iter([None, FolderKept("it was placed", remedy="wait")])
    monkeypatch.setattr(cluster.a, "why_not_deleted", lambda _model: next(checks))
    with pytest.raises(FolderKept, match="it was placed"):
        asyncio.run(cluster.a.here(M))
    assert (tmp_path / "a" / "models" / "m").is_dir()
