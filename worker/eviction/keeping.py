"""Talks to the bus and to a thread: asks other nodes to keep their copy of a model, and answers
such questions.

`grants` makes the decisions. Before this node promises to keep its copy, the copy is checked on the
disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bus.process.identity import new_name
from bus.wire.messages.weights import KeepAnswered, KeepAsked
from worker.eviction.folders import lacking
from worker.eviction.grants import Grants
from worker.transfer.disk_thread import DiskThread

if TYPE_CHECKING:
    from bus.client import BusClient
    from bus.wire.cards import ModelCard
    from bus.wire.codec import Envelope
    from bus.wire.ids import ModelId


UNREADABLE = "the node's files cannot be read"


class Keeping:
    """Sends and answers one node's questions about keeping copies. `copy_of` returns the card of
    the node's complete copy of a model; None if it has no complete copy."""

    def __init__(
        self,
        client: BusClient,
        thread: DiskThread,
        copy_of: Callable[[ModelId], ModelCard | None],
    ) -> None:
        self._client = client
        self._thread = thread
        self._copy_of = copy_of
        self._node = client.speaker.node
        self.grants = Grants(self._node, partial(new_name, "keep"))
        client.hear(f"keep.asked.{self._node}", self._take_question)
        client.hear(f"keep.answered.{self._node}", self._answered)

    def tick(self, now: float) -> None:
        """Ask the next node to keep its copy, if that question is due."""
        due = self.grants.due(now)
        if due is not None:
            self._client.publish(f"keep.asked.{due[0]}", due[1])

    def _take_question(self, _topic: str, envelope: Envelope) -> None:
        question = envelope.message
        if not isinstance(question, KeepAsked) or question.asker == self._node:
            return
        card = self._copy_of(question.model)
        if card is None:
            self._answer(question, "the node does not have all of the files")
        elif question.digest and card.digest and card.digest != question.digest:
            self._answer(question, "the node's copy has other content")
        else:
            folder, size_bytes = Path(card.path), card.size_bytes
            self._thread.add(
                lambda _stopped: lacking(folder, size_bytes, question),
                lambda lacks: self._answer(
                    question, lacks if isinstance(lacks, str) else UNREADABLE
                ),
            )

    def _answer(self, question: KeepAsked, lacks: str) -> None:
        answer = self.grants.answer(question, lacks)
        self._client.publish(f"keep.answered.{question.asker}", answer)

    def _answered(self, _topic: str, envelope: Envelope) -> None:
        if isinstance(envelope.message, KeepAnswered):
            self.grants.answered(envelope.message, self._client.reactor.now())
