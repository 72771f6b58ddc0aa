"""Talks to the gateways of all nodes, and to this node's disk in a thread: the card of a model on
each node that has the complete model.

Each node changes its own file and reports the result. A new card gets the same time on all nodes,
later than the time of any card that was read. So the new card wins wherever it meets an older one.
If two cards are written simultaneously, the same one of the two stays on all nodes.
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
from gateway.cluster.record_questions import Questions, RecordsElsewhere
from gateway.control.card_on_disk import (
    CardKept,
    folder_for_card,
    read_text,
    remove,
    write_text,
)
from gateway.view.readings import ClusterReadings

READ, WRITE, REMOVE = "read_card", "write_card", "remove_card"
LATER_S = 0.001
TAG_DIGITS = 32


class CardChanged(CardKept):
    """The card has changed since its writer read it."""


@dataclass(frozen=True, slots=True)
class CardOnNode:
    """The card of a model on one node: its `text` (None without a card), the time of its writing
    and its `folder`.

    `kept` says why the card cannot be changed on that node (empty: it can). `unknown` says why the
    node did not answer. `done`: the card was changed just now.
    """

    node: NodeId
    name: str
    folder: str
    text: str | None = None
    at_s: float = 0.0
    kept: str = ""
    unknown: str = ""
    done: bool = False


class CardFiles:
    """Reads and changes the cards of this node, and asks other nodes to do the same."""

    def __init__(self, bus: BusClient, readings: ClusterReadings, questions: Questions) -> None:
        self._bus = bus
        self._readings = readings
        self._questions = questions
        for verb, act in ((READ, self._read), (WRITE, self._write), (REMOVE, self._remove)):
            questions.answer(verb, partial(self._answer, act))

    async def read(self, model: ModelId) -> list[CardOnNode]:
        return await self._everywhere(READ, model)

    async def write(self, model: ModelId, text: str, begun_with: str = "") -> list[CardOnNode]:
        """Write the card on each node that has the complete model. Return the result of each node.
        Raises CardChanged if the newest card's tag is not `begun_with` (empty: any tag)."""
        cards = await self._unchanged(model, begun_with)
        newest_s = max((card.at_s for card in cards), default=0.0)
        at_s = round(max(wall(), newest_s + LATER_S), 3)
        return await self._everywhere(WRITE, model, text, at_s)

    async def remove(self, model: ModelId, begun_with: str = "") -> list[CardOnNode]:
        """Delete the card on each node that has the complete model. Raises CardChanged as `write`
        does."""
        await self._unchanged(model, begun_with)
        return await self._everywhere(REMOVE, model)

    # --- to ask ----------------------------------------------------------------------------------

    async def _unchanged(self, model: ModelId, begun_with: str) -> list[CardOnNode]:
        cards = await self.read(model)
        newest = newest_of(cards)
        if begun_with and begun_with != tag_of(newest):
            where = "" if newest is None else f" on {newest.name}"
            raise CardChanged(
                f"the card of {model} was changed{where} in the meantime; read it with "
                f"`shoal card export {model}`, and change that"
            )
        return cards

    async def _everywhere(self, verb: str, model: ModelId, *given: object) -> list[CardOnNode]:
        having = [card for card in self._cards() if _copy(card, model) is not None]
        return list(await asyncio.gather(*(self._at(card, verb, model, given) for card in having)))

    async def _at(
        self, card: NodeCard, verb: str, model: ModelId, given: tuple[object, ...]
    ) -> CardOnNode:
        try:
            fields = await self._questions.ask(card.node, verb, [model, *given])
            return CardOnNode(**cast(dict[str, Any], fields))
        except (RecordsElsewhere, CardKept) as error:
            copy = _copy(card, model)
            folder = "" if copy is None else copy.path
            return CardOnNode(card.node, card.name, folder, unknown=str(error))

    # --- to answer -------------------------------------------------------------------------------

    async def _answer(
        self, act: Callable[..., Awaitable[CardOnNode]], arguments: Any
    ) -> dict[str, Any]:
        """Answer a node. A repeated question repeats the change, which has no further effect."""
        model, *given = cast(list[Any], arguments)
        return asdict(await act(ModelId(str(model)), *given))

    async def _read(self, model: ModelId) -> CardOnNode:
        return await asyncio.to_thread(_read, self._own(model))

    async def _write(self, model: ModelId, text: str, at_s: float) -> CardOnNode:
        copy = self._own(model)

        def write() -> bool:
            write_text(folder_for_card(copy[1]), text, at_s)
            return True

        return await self._changed(copy, write)

    async def _remove(self, model: ModelId) -> CardOnNode:
        copy = self._own(model)
        return await self._changed(copy, lambda: remove(folder_for_card(copy[1])))

    async def _changed(
        self, copy: tuple[NodeCard, ModelCard], change: Callable[[], bool]
    ) -> CardOnNode:
        """Change a card in a thread, and return its new state."""
        try:
            done = await asyncio.to_thread(change)
        except CardKept as error:
            card = await asyncio.to_thread(_read, copy)
            return replace(card, kept=str(error))
        except OSError as error:
            card = await asyncio.to_thread(_read, copy)
            return replace(card, kept=f"disk error: {error.strerror or error}")
        self._bus.log.info("a card was changed", model=copy[1].model, folder=copy[1].path)
        return replace(await asyncio.to_thread(_read, copy), done=done)

    def _own(self, model: ModelId) -> tuple[NodeCard, ModelCard]:
        """Return the node card of this node and the model card of a model on it. Raises CardKept if
        this node does not have the complete model."""
        own = self._bus.speaker.node
        for card in self._cards():
            copy = _copy(card, model)
            if card.node == own and copy is not None:
                return card, copy
        raise CardKept(f"{model} is not complete on this node's disk")

    def _cards(self) -> list[NodeCard]:
        return self._readings.cards(self._bus.reactor.now())


def newest_of(cards: Iterable[CardOnNode]) -> CardOnNode | None:
    """Return the card that was written last, which is the valid card; None if no node has a
    card."""
    written = [card for card in cards if card.text is not None]
    return max(written, key=lambda card: card.at_s, default=None)


def tag_of(card: CardOnNode | None) -> str:
    """Return a tag that identifies the text of a card. Without a card, the tag says that none
    exists."""
    text = None if card is None else card.text
    return "none" if text is None else sha256(text.encode()).hexdigest()[:TAG_DIGITS]


def _copy(card: NodeCard, model: ModelId) -> ModelCard | None:
    return next((entry for entry in card.models if entry.model == model), None)


def _read(copy: tuple[NodeCard, ModelCard]) -> CardOnNode:
    """Return the card in a model's folder, and why it cannot be changed."""
    card, model = copy
    reason = ""
    try:
        folder_for_card(model)
    except CardKept as error:
        reason = str(error)
    stored = None
    try:
        stored = read_text(Path(model.path))
    except OSError as error:
        reason = reason or f"disk error: {error.strerror or error}"
    text, at_s = (None, 0.0) if stored is None else stored
    return CardOnNode(card.node, card.name, model.path, text, at_s, reason)
