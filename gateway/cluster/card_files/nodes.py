"""Talks to the gateways of all nodes, and to this node's disk in a thread: the card of a model on
each node that has it whole.

Each node changes its own file, and says what came of it. A card that is written bears one instant
on all of them, later than that of any card that is known: so it is the newest wherever two of them
meet, and of two that are written at once the same one stays on every node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from bus.client import BusClient
from bus.process.clock import wall
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import ModelId, NodeId
from gateway.cluster.card_files.files import (
    CardKept,
    folder_for_card,
    read_text,
    remove,
    write_text,
)
from gateway.cluster.readings import ClusterReadings
from gateway.cluster.record_questions import Questions, RecordsElsewhere

READ, WRITE, REMOVE = "read_card", "write_card", "remove_card"
LATER_S = 0.001
TAG_DIGITS = 32


class CardChanged(CardKept):
    """A card that is not, any more, the one that its writer began with."""


@dataclass(frozen=True, slots=True)
class CardOnNode:
    """The card of a model on one node: its `text` (None: it has none), when it was written, and
    `folder`, where it lies. `kept` says why it cannot be changed there (empty: it can); `unknown`
    why that node has not answered. `done`: it was changed just now."""

    node: NodeId
    name: str
    folder: str
    text: str | None = None
    at_s: float = 0.0
    kept: str = ""
    unknown: str = ""
    done: bool = False


class CardFiles:
    """Reads and changes the cards of this node, and has other nodes do so with theirs."""

    def __init__(self, bus: BusClient, readings: ClusterReadings, questions: Questions) -> None:
        self._bus = bus
        self._readings = readings
        self._questions = questions
        for verb, act in ((READ, self._read), (WRITE, self._write), (REMOVE, self._remove)):
            questions.answer(verb, partial(self._asked, act))

    async def read(self, model: ModelId) -> list[CardOnNode]:
        """Return the card of each node that has the model whole."""
        return await self._everywhere(READ, model)

    async def write(self, model: ModelId, text: str, begun_with: str = "") -> list[CardOnNode]:
        """Write the card on each node that has the model whole, and return what came of it at each.
        Raises CardChanged where the tag of the newest is not `begun_with` (empty: any will do)."""
        found = await self._unchanged(model, begun_with)
        newest_s = max((one.at_s for one in found), default=0.0)
        at_s = round(max(wall(), newest_s + LATER_S), 3)
        return await self._everywhere(WRITE, model, text, at_s)

    async def remove(self, model: ModelId, begun_with: str = "") -> list[CardOnNode]:
        """Take the card away on each node that has the model whole, as `write` writes it."""
        await self._unchanged(model, begun_with)
        return await self._everywhere(REMOVE, model)

    # --- to ask ----------------------------------------------------------------------------------

    async def _unchanged(self, model: ModelId, begun_with: str) -> list[CardOnNode]:
        found = await self.read(model)
        newest = newest_of(found)
        if begun_with and begun_with != tag_of(newest):
            where = "" if newest is None else f" on {newest.name}"
            raise CardChanged(
                f"the card of {model} was changed{where} in the meantime; read it with "
                f"`shoal card export {model}`, and change that"
            )
        return found

    async def _everywhere(self, verb: str, model: ModelId, *given: object) -> list[CardOnNode]:
        having = [card for card in self._cards() if _copy(card, model) is not None]
        return list(await asyncio.gather(*(self._at(card, verb, model, given) for card in having)))

    async def _at(
        self, card: NodeCard, verb: str, model: ModelId, given: tuple[object, ...]
    ) -> CardOnNode:
        try:
            said = await self._questions.ask(card.node, verb, [model, *given])
            return CardOnNode(**cast(dict[str, Any], said))
        except (RecordsElsewhere, CardKept) as error:
            copy = _copy(card, model)
            folder = "" if copy is None else copy.path
            return CardOnNode(card.node, card.name, folder, unknown=str(error))

    # --- to answer -------------------------------------------------------------------------------

    async def _asked(
        self, act: Callable[..., Awaitable[CardOnNode]], arguments: Any
    ) -> dict[str, Any]:
        """Answer a node. Asked twice, it does the same once more, which changes nothing."""
        model, *given = cast(list[Any], arguments)
        return asdict(await act(ModelId(str(model)), *given))

    async def _read(self, model: ModelId) -> CardOnNode:
        return await asyncio.to_thread(_read, self._own(model))

    async def _write(self, model: ModelId, text: str, at_s: float) -> CardOnNode:
        copy = self._own(model)

        def write() -> bool:
            """Write it."""
            write_text(folder_for_card(copy[1]), text, at_s)
            return True

        return await self._changed(copy, write)

    async def _remove(self, model: ModelId) -> CardOnNode:
        copy = self._own(model)
        return await self._changed(copy, lambda: remove(folder_for_card(copy[1])))

    async def _changed(
        self, copy: tuple[NodeCard, ModelCard], change: Callable[[], bool]
    ) -> CardOnNode:
        """Change a card in a thread, and return how it is then."""
        try:
            done = await asyncio.to_thread(change)
        except CardKept as error:
            found = await asyncio.to_thread(_read, copy)
            return replace(found, kept=str(error))
        except OSError as error:
            found = await asyncio.to_thread(_read, copy)
            return replace(found, kept=f"disk error: {error.strerror or error}")
        self._bus.log.info("a card was changed", model=copy[1].model, folder=copy[1].path)
        return replace(await asyncio.to_thread(_read, copy), done=done)

    def _own(self, model: ModelId) -> tuple[NodeCard, ModelCard]:
        """Return this node, and its copy of a model. Raises CardKept where it has none whole."""
        own = self._bus.speaker.node
        for card in self._cards():
            copy = _copy(card, model)
            if card.node == own and copy is not None:
                return card, copy
        raise CardKept(f"{model} is not complete on this node's disk")

    def _cards(self) -> list[NodeCard]:
        return self._readings.cards(self._bus.reactor.now())


def newest_of(found: Iterable[CardOnNode]) -> CardOnNode | None:
    """Return the card that was written last, which is the one that counts; None without one."""
    written = [one for one in found if one.text is not None]
    return max(written, key=lambda one: one.at_s, default=None)


def tag_of(card: CardOnNode | None) -> str:
    """Return what tells a card's text from any other; of no card, too."""
    text = None if card is None else card.text
    return "none" if text is None else sha256(text.encode()).hexdigest()[:TAG_DIGITS]


def _copy(card: NodeCard, model: ModelId) -> ModelCard | None:
    return next((one for one in card.models if one.model == model), None)


def _read(copy: tuple[NodeCard, ModelCard]) -> CardOnNode:
    """Return the card in a copy's folder, and whether it could be changed."""
    card, model = copy
    kept = ""
    try:
        folder_for_card(model)
    except CardKept as error:
        kept = str(error)
    known = None
    try:
        known = read_text(Path(model.path))
    except OSError as error:
        kept = kept or f"disk error: {error.strerror or error}"
    text, at_s = (None, 0.0) if known is None else known
    return CardOnNode(card.node, card.name, model.path, text, at_s, kept)
