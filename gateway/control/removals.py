"""Talks to this node's disk and to other nodes: deletes a model from the disks that have it.

A model that is part of shoal stays. So does a model that is loaded, loading or being copied to a
node, anywhere in the cluster. An unfinished pull is deleted like a model. A folder is first moved
to another name in one step, so no process sees a half-deleted folder. If an instance of the model
was placed meanwhile, the folder is moved back. Other nodes delete their folders by the same rules
and report the result.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from bus.calls import NodeCalls
from bus.calls.table import DELETE_MODEL
from bus.client import BusClient
from bus.models.held_models import FolderKept, why_held
from bus.models.model_folders import delete_aside, own_folder, put_aside, put_back
from bus.wire.calls.models import DeleteModel, Removal
from bus.wire.cards import ModelCard, NodeCard, pulls_in_part
from bus.wire.ids import ModelId
from bus.wire.messages.readings import PullReading
from gateway.view.readings import ClusterReadings


class Removals:
    """Deletes models from this node's folder `models`, and asks other nodes to delete theirs."""

    def __init__(
        self, bus: BusClient, readings: ClusterReadings, calls: NodeCalls, models: str
    ) -> None:
        self._bus = bus
        self._readings = readings
        self._calls = calls
        self._models = models
        calls.answer(DELETE_MODEL, self._delete_here)

    def lies_at(self, model: ModelId) -> list[NodeCard]:
        """Return the cards of the nodes whose disks have the model or a part of it."""
        return [card for card in self._cards() if _folders(card, model)]

    def why_not_deleted(self, model: ModelId) -> FolderKept | None:
        """Return why the model cannot be deleted now; None if it can."""
        now = self._bus.reactor.now()
        return why_held(
            model,
            self._bus.state.instances.values(),
            self._readings.weights(now),
            self._readings.fresh(PullReading, now),
            {str(card.node): card.name for card in self._cards()},
        )

    async def everywhere(self, model: ModelId, key: str) -> list[Removal]:
        """Delete the model from all nodes; return the result of each. `key` is the API key of the
        client (`NodeCalls.ask`)."""
        cards = {card.node: card for card in self.lies_at(model)}
        gathered = await self._calls.ask_each(
            DELETE_MODEL, DeleteModel(model=model), nodes=list(cards), key=key
        )
        failed = {
            node: Removal(node=node, name=cards[node].name, deleted=False, why=str(error))
            for node, error in gathered.failures.items()
        }
        return [gathered.replies.get(node) or failed[node] for node in cards]

    async def here(self, model: ModelId) -> Removal:
        """Delete the model from this node's disk. Raises FolderKept if the model must stay."""
        own = self._bus.speaker.node
        card = next((card for card in self._cards() if card.node == own), None)
        folders = [] if card is None else _folders(card, model)
        if card is None or not folders:
            raise FolderKept(f"{model} is not on this node's disk", remedy="use a node that has it")
        if any(entry.model == model and entry.bundled for entry in card.models):
            raise FolderKept(
                f"{model} is part of shoal and cannot be deleted", remedy="it takes at most 10 MB"
            )
        if reason := self.why_not_deleted(model):
            raise reason
        for folder in folders:
            await self._delete(model, Path(folder.path))
        size = sum(folder.size_bytes for folder in folders)
        return Removal(
            node=own, name=card.name, deleted=True, size_bytes=size, folder=folders[0].path
        )

    async def _delete(self, model: ModelId, path: Path) -> None:
        """Delete a folder of the model, unless the model is in use by then."""
        models = Path(self._models)
        folder = await asyncio.to_thread(own_folder, path, models)
        aside = await asyncio.to_thread(put_aside, folder, models)
        if reason := self.why_not_deleted(model):
            await asyncio.to_thread(put_back, aside, folder)
            raise reason
        await asyncio.to_thread(delete_aside, aside, folder, models)
        self._bus.log.info("deleted a model", model=model, folder=str(path))

    async def _delete_here(self, call: DeleteModel) -> Removal:
        """Answer a node. If the call is repeated after the deletion, the reply says that the model
        is not on this disk."""
        try:
            return await self.here(call.model)
        except FolderKept as error:
            own = self._bus.speaker.node
            names = {card.node: card.name for card in self._cards()}
            name = names.get(own, own)
            return Removal(node=own, name=name, deleted=False, why=error.words)

    def _cards(self) -> list[NodeCard]:
        return self._readings.cards(self._bus.reactor.now())


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder on a node's disk: a model, some of its layers, or an unfinished pull."""

    path: str
    size_bytes: int


def _folders(card: NodeCard, model: ModelId) -> list[_Folder]:
    """Return the folders that contain the model or a part of it on a node's disk."""
    whole: ModelCard | None = next((entry for entry in card.models if entry.model == model), None)
    return [
        *(() if whole is None else (_Folder(whole.path, whole.size_bytes),)),
        *(_Folder(part.path, part.have_bytes) for part in card.parts if part.model == model),
        *(_Folder(pull.path, 0) for pull in pulls_in_part(card, model)),
    ]
