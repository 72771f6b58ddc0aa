"""Nodes that have a model, each in a folder of its own: their cards, over real files; only the bus
between them is a stand-in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bus.models.cards import CARD_FILE, BadCard, read_card
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import CardReading
from gateway.control.card_files import CardFiles
from gateway.view.readings import ClusterReadings
from tests.harness.called_nodes import CalledNodes
from tests.recorded.specimens import least

M = ModelId("org/m")


class CardNodes:
    """Nodes `a` and `b` that have the model; `c` has it too and is down."""

    def __init__(self, folder: Path) -> None:
        self.readings = ClusterReadings()
        self.folders = {name: folder / name / "models" / "org" / "m" for name in "abc"}
        self.changes: dict[str, dict[str, Any]] = {name: {} for name in "abc"}
        """What of a node's own card of the model is told otherwise."""
        self._told = 0
        called = CalledNodes("a", "b", down="c")
        self.files: dict[str, CardFiles] = {}
        for name, own in self.folders.items():
            own.mkdir(parents=True)
            (own / "config.json").write_text("{}")
            self.files[name] = CardFiles(self.bus(name), self.readings, called[name])
            self.tell(name)
        self.a = self.files["a"]

    def bus(self, name: str) -> Any:
        """The bus of a node, as far as cards need one."""
        return SimpleNamespace(
            speaker=SimpleNamespace(node=NodeId(name)),
            reactor=SimpleNamespace(now=lambda: 1.0),
            log=SimpleNamespace(info=_pass_over),
        )

    def tell(self, name: str) -> None:
        """Have a node say what lies on its disk now, as its worker would."""
        folder = self.folders[name]
        noted: tuple[str, ...] = ()
        at_s = 0.0
        try:
            noted = read_card((folder / CARD_FILE).read_bytes()).said
            at_s = (folder / CARD_FILE).stat().st_mtime
        except (FileNotFoundError, BadCard):
            pass
        told = {"model": M, "path": str(folder), "noted": noted, "card_at_s": at_s}
        model = least(ModelCard).model_copy(update={**told, **self.changes[name]})
        card = least(NodeCard).model_copy(
            update={"node": NodeId(name), "name": f"node-{name}", "models": (model,)}
        )
        self._told += 1
        card = card.model_copy(update={"announced_at_s": float(self._told)})
        self.readings.heard(CardReading(card=card), 1.0)

    def text(self, name: str) -> str | None:
        """The card in a node's folder."""
        file = self.folders[name] / CARD_FILE
        return file.read_text() if file.exists() else None

    def lying(self, name: str) -> set[str]:
        """The files in a node's folder of the model, beside its configuration."""
        return {file.name for file in self.folders[name].iterdir()} - {"config.json"}


def _pass_over(*_: Any, **__: Any) -> None:
    """Log nothing."""
