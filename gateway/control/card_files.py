"""Talks to the gateways of all nodes, and to this node's disk in a thread: the `card.toml` of a
model on each node that has the complete model.

Each node changes its own file and reports the result. A new file gets the same time on all nodes,
later than the time of any file that was read. So the new file replaces an older one on every node.
If two files are written simultaneously, the same one of the two stays on all nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from bus.calls import CallFailed, NodeCalls, TypedCall
from bus.calls.table import READ_CARD, REMOVE_CARD, WRITE_CARD
from bus.client import BusClient
from bus.process.clock import wall
from bus.wire.calls.models import CardOnNode, ReadCard, RemoveCard, WriteCard
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import ModelId
from bus.wire.messages.wire import Message
from gateway.control.card_on_disk import (
    CardKept,
    folder_for_card,
    read_text,
    remove,
    write_text,
)
from gateway.view.readings import ClusterReadings

Q = TypeVar("Q", bound=Message)
LATER_S = 0.001
TAG_DIGITS = 32


class CardChanged(CardKept):
    """The `card.toml` has changed since its writer read it."""


class CardFiles:
    """Reads and changes the `card.toml` files of this node, and asks other nodes to do the same."""

    def __init__(self, bus: BusClient, readings: ClusterReadings, calls: NodeCalls) -> None:
        self._bus = bus
        self._readings = readings
        self._calls = calls
        calls.answer(READ_CARD, self._read)
        calls.answer(WRITE_CARD, self._write)
        calls.answer(REMOVE_CARD, self._remove)

    async def read(self, model: ModelId, key: str) -> list[CardOnNode]:
        """Return the `card.toml` of the model on each node that has the complete model. `key` is
        the API key of the client (`NodeCalls.ask`), here and below."""
        return await self._everywhere(READ_CARD, ReadCard(model=model), model, key)

    async def write(
        self, model: ModelId, text: str, key: str, begun_with: str = ""
    ) -> list[CardOnNode]:
        """Write the `card.toml` on each node that has the complete model. Return the result of each
        node. Raises CardChanged if the newest file's tag is not `begun_with` (empty: any tag)."""
        cards = await self._unchanged(model, key, begun_with)
        newest_s = max((card.at_s for card in cards), default=0.0)
        at_s = round(max(wall(), newest_s + LATER_S), 3)
        write = WriteCard(model=model, text=text, at_s=at_s)
        return await self._everywhere(WRITE_CARD, write, model, key)

    async def remove(self, model: ModelId, key: str, begun_with: str = "") -> list[CardOnNode]:
        """Delete the `card.toml` on each node that has the complete model. Return each node's
        result. Raises CardChanged if the newest file's tag is not `begun_with` (empty: any tag)."""
        await self._unchanged(model, key, begun_with)
        return await self._everywhere(REMOVE_CARD, RemoveCard(model=model), model, key)

    # --- to ask ----------------------------------------------------------------------------------

    async def _unchanged(self, model: ModelId, key: str, begun_with: str) -> list[CardOnNode]:
        cards = await self.read(model, key)
        newest = newest_of(cards)
        if begun_with and begun_with != tag_of(newest):
            where = "" if newest is None else f" on {newest.name}"
            raise CardChanged(
                f"the card of {model} was changed{where} in the meantime; read the new card "
                f"with `shoal card export {model}`, and repeat the change"
            )
        return cards

    async def _everywhere(
        self, call: TypedCall[Q, CardOnNode], request: Q, model: ModelId, key: str
    ) -> list[CardOnNode]:
        having = {card.node: card for card in self._cards() if _copy(card, model) is not None}
        return list(
            await asyncio.gather(
                *(self._at(card, call, request, model, key) for card in having.values())
            )
        )

    async def _at(
        self, card: NodeCard, call: TypedCall[Q, CardOnNode], request: Q, model: ModelId, key: str
    ) -> CardOnNode:
        try:
            return await self._calls.ask(card.node, call, request, key=key)
        except (CallFailed, CardKept) as error:
            copy = _copy(card, model)
            folder = "" if copy is None else copy.path
            return CardOnNode(node=card.node, name=card.name, folder=folder, unknown=str(error))

    # --- to answer; a repeated call repeats the change, which has no further effect ---------------

    async def _read(self, call: ReadCard) -> CardOnNode:
        return await asyncio.to_thread(_read, self._own(call.model))

    async def _write(self, call: WriteCard) -> CardOnNode:
        copy = self._own(call.model)

        def write() -> bool:
            write_text(folder_for_card(copy[1]), call.text, call.at_s)
            return True

        return await self._changed(copy, write)

    async def _remove(self, call: RemoveCard) -> CardOnNode:
        copy = self._own(call.model)
        return await self._changed(copy, lambda: remove(folder_for_card(copy[1])))

    async def _changed(
        self, copy: tuple[NodeCard, ModelCard], change: Callable[[], bool]
    ) -> CardOnNode:
        """Change a `card.toml` in a thread, and return its new state."""
        try:
            done = await asyncio.to_thread(change)
        except CardKept as error:
            card = await asyncio.to_thread(_read, copy)
            return card.model_copy(update={"kept": str(error)})
        except OSError as error:
            card = await asyncio.to_thread(_read, copy)
            return card.model_copy(update={"kept": f"disk error: {error.strerror or error}"})
        self._bus.log.info("a card was changed", model=copy[1].model, folder=copy[1].path)
        return (await asyncio.to_thread(_read, copy)).model_copy(update={"done": done})

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
    """Return the `card.toml` that was written last, which is in force; None if no node has one."""
    written = [card for card in cards if card.text is not None]
    return max(written, key=lambda card: card.at_s, default=None)


def tag_of(card: CardOnNode | None) -> str:
    """Return a tag that identifies the text of a `card.toml`; "none" if there is no file."""
    text = None if card is None else card.text
    return "none" if text is None else sha256(text.encode()).hexdigest()[:TAG_DIGITS]


def _copy(card: NodeCard, model: ModelId) -> ModelCard | None:
    return next((entry for entry in card.models if entry.model == model), None)


def _read(copy: tuple[NodeCard, ModelCard]) -> CardOnNode:
    """Return the card in a model's folder, with the reason if the card cannot be changed."""
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
    return CardOnNode(
        node=card.node, name=card.name, folder=model.path, text=text, at_s=at_s, kept=reason
    )
