"""Talks to the bus and to a thread: asks other nodes whether a copy may go, and answers theirs.

What is decided is in `grants`; here it travels, and the own copy is looked at on the disk before
another one is let go for it.
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


UNREADABLE = "its copy cannot be read"


class Keeping:
    """One node's grants on the bus. `copy_of` returns the card of its whole copy of a model, None
    without one."""

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
        client.hear(f"keep.asked.{self._node}", self._asked)
        client.hear(f"keep.answered.{self._node}", self._answered)

    def tick(self, now: float) -> None:
        """Ask what is due."""
        due = self.grants.due(now)
        if due is not None:
            self._client.publish(f"keep.asked.{due[0]}", due[1])

    def _asked(self, _topic: str, envelope: Envelope) -> None:
        asked = envelope.message
        if not isinstance(asked, KeepAsked) or asked.asker == self._node:
            return
        card = self._copy_of(asked.model)
        if card is None:
            self._answer(asked, "it has no whole copy")
        elif asked.digest and card.digest and card.digest != asked.digest:
            self._answer(asked, "its copy has another content")
        else:
            folder, size_bytes = Path(card.path), card.size_bytes
            self._thread.add(
                lambda _stopped: lacking(folder, size_bytes, asked),
                lambda lacks: self._answer(asked, lacks if isinstance(lacks, str) else UNREADABLE),
            )

    def _answer(self, asked: KeepAsked, lacks: str) -> None:
        answer = self.grants.asked(asked, lacks)
        self._client.publish(f"keep.answered.{asked.asker}", answer)

    def _answered(self, _topic: str, envelope: Envelope) -> None:
        if isinstance(envelope.message, KeepAnswered):
            self.grants.answered(envelope.message, self._client.reactor.now())
