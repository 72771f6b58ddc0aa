"""Facts kept until they are seen indexed, whoever the holder then is.

Pure. A witness numbers its facts 1, 2, 3, ... within a boot; they are told in that order and
again every second until a mirror shows them indexed. Telling twice is harmless: `apply`
knows (node, process, boot, seq).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.ids import Boot, NodeId
from bus.messages.control import TellFact
from bus.messages.events import Fact, FactId
from bus.state import ClusterState, is_known

REPEAT_S = 1.0


@dataclass(slots=True)
class Outbox:
    """The facts of one witness, oldest first; `told_at` is when each was last told."""

    node: NodeId
    process: str
    boot: Boot
    seq: int = 0
    waiting: dict[int, Fact] = field(default_factory=dict[int, Fact])
    told_at: dict[int, float] = field(default_factory=dict[int, float])

    def add(self, fact: Fact) -> int:
        """Keep a new fact; it is due at once. Returns its sequence number."""
        self.seq += 1
        self.waiting[self.seq] = fact
        return self.seq

    def due(self, now: float) -> list[TellFact]:
        """Facts to tell now: never told, or told more than a second ago. In order."""
        due: list[TellFact] = []
        for seq, fact in self.waiting.items():
            if now - self.told_at.get(seq, -REPEAT_S) >= REPEAT_S:
                self.told_at[seq] = now
                due.append(TellFact(fact=fact, fact_id=self._id(seq)))
        return due

    def seen(self, state: ClusterState) -> None:
        """Forget what the state shows as indexed."""
        done = [seq for seq in self.waiting if is_known(state, self._id(seq))]
        for seq in done:
            del self.waiting[seq]
            self.told_at.pop(seq, None)

    def _id(self, seq: int) -> FactId:
        return FactId(node=self.node, process=self.process, boot=self.boot, seq=seq)
