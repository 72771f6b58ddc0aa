"""Talks to this node's disk and to other nodes: deletes a model where it lies.

What comes with shoal stays, and so does what is loaded or being loaded, anywhere in the cluster, or
on its way to a node. A pull that did not end goes like a model. A folder is moved aside in one
step, so that no half of it is ever seen, and looked at once more: where a copy of the model was
placed meanwhile it is moved back. Other nodes delete theirs by the same rules, and say what came of
it.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from bus.client import BusClient
from bus.held_models import FolderKept, why_held
from bus.model_folders import delete_aside, own_folder, put_aside, put_back
from bus.wire.cards import ModelCard, NodeCard, pulls_in_part
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullReading
from gateway.cluster.readings import ClusterReadings
from gateway.cluster.record_questions import Questions, RecordsElsewhere

VERB = "delete_model"


@dataclass(frozen=True, slots=True)
class Removal:
    """What came of deleting a model from one node: `why` it stays, empty where it is gone."""

    node: NodeId
    name: str
    deleted: bool
    size_bytes: int = 0
    folder: str = ""
    why: str = ""


class Removals:
    """Deletes models from this node's folder `models`, and has other nodes delete theirs."""

    def __init__(
        self, bus: BusClient, readings: ClusterReadings, questions: Questions, models: str
    ) -> None:
        self._bus = bus
        self._readings = readings
        self._questions = questions
        self._models = models
        questions.answer(VERB, self._asked)

    def lies_at(self, model: ModelId) -> list[NodeCard]:
        """Return the cards of the nodes on whose disks the model lies, whole or in part."""
        return [card for card in self._cards() if _lying(card, model)]

    def held(self, model: ModelId) -> FolderKept | None:
        """Return why the model is not deleted now; None where it may be."""
        now = self._bus.reactor.now()
        return why_held(
            model,
            self._bus.state.instances.values(),
            self._readings.weights(now),
            self._readings.fresh(PullReading, now),
            {str(card.node): card.name for card in self._cards()},
        )

    async def everywhere(self, model: ModelId) -> list[Removal]:
        """Delete the model from all nodes; returns what came of it at each."""
        return list(await asyncio.gather(*(self._at(card, model) for card in self.lies_at(model))))

    async def here(self, model: ModelId) -> Removal:
        """Delete the model from this node's disk. Raises FolderKept, with why it stays."""
        own = self._bus.speaker.node
        card = next((card for card in self._cards() if card.node == own), None)
        lying = [] if card is None else _lying(card, model)
        if card is None or not lying:
            raise FolderKept(f"{model} is not on this node's disk", remedy="use a node that has it")
        if any(one.model == model and one.bundled for one in card.models):
            raise FolderKept(
                f"{model} is part of shoal and cannot be deleted", remedy="it takes at most 10 MB"
            )
        if kept := self.held(model):
            raise kept
        for one in lying:
            await self._delete(model, Path(one.path))
        size = sum(one.size_bytes for one in lying)
        return Removal(own, card.name, True, size, lying[0].path)

    async def _delete(self, model: ModelId, path: Path) -> None:
        """Delete a folder of the model, unless something has to do with the model by then."""
        models = Path(self._models)
        folder = await asyncio.to_thread(own_folder, path, models)
        aside = await asyncio.to_thread(put_aside, folder, models)
        if kept := self.held(model):
            await asyncio.to_thread(put_back, aside, folder)
            raise kept
        await asyncio.to_thread(delete_aside, aside, folder, models)
        self._bus.log.info("deleted a model", model=model, folder=str(path))

    async def _at(self, card: NodeCard, model: ModelId) -> Removal:
        try:
            if card.node == self._bus.speaker.node:
                return await self.here(model)
            said = cast(dict[str, Any], await self._questions.ask(card.node, VERB, [model]))
            return Removal(**said)
        except FolderKept as error:
            return Removal(card.node, card.name, False, why=error.words)
        except RecordsElsewhere as error:
            return Removal(card.node, card.name, False, why=str(error))

    async def _asked(self, arguments: Any) -> dict[str, Any]:
        """Answer another node. Asked twice, it says the second time that nothing is there."""
        model = ModelId(str(arguments[0]))
        try:
            return asdict(await self.here(model))
        except FolderKept as error:
            own = self._bus.speaker.node
            names = {card.node: card.name for card in self._cards()}
            return asdict(Removal(own, names.get(own, own), False, why=error.words))

    def _cards(self) -> list[NodeCard]:
        return self._readings.cards(self._bus.reactor.now())


@dataclass(frozen=True, slots=True)
class _Lying:
    """A folder on a node's disk with a model, some of its layers, or what came of a pull."""

    path: str
    size_bytes: int


def _lying(card: NodeCard, model: ModelId) -> list[_Lying]:
    """Return where the model lies on a node's disk."""
    whole: ModelCard | None = next((one for one in card.models if one.model == model), None)
    return [
        *(() if whole is None else (_Lying(whole.path, whole.size_bytes),)),
        *(_Lying(part.path, part.have_bytes) for part in card.parts if part.model == model),
        *(_Lying(one.path, 0) for one in pulls_in_part(card, model)),
    ]
