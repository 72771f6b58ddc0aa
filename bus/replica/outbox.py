"""The facts that a process has witnessed, sent repeatedly until a leader has written them to the
log (indexed them).

Pure. A fact is an observation for the log, such as the end of a runner. A process numbers its facts
1, 2, 3, ... under its boot id (the id of its current start). They are sent in that order, and again
every second until a mirror of the log shows them as indexed. Repeats are harmless, because `apply`
recognises (node, process, boot, seq).

When another log replaces the leader's, indexed facts may be lost. Then they are sent again, so the
last `KEPT` facts are stored. If that is not enough, all stored facts are numbered again under a new
boot id.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.replica.state import ClusterState
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.control import TellFact
from bus.wire.messages.events import Fact, FactId

REPEAT_S = 1.0
KEPT = 256


@dataclass(slots=True)
class Outbox:
    """The facts of one process, oldest first. `sent_at`: when each fact was last sent. `indexed`:
    the latest facts that are in the log. No number is in both `waiting` and `indexed`."""

    node: NodeId
    process: str
    boot: Boot
    seq: int = 0
    waiting: dict[int, Fact] = field(default_factory=dict[int, Fact])
    sent_at: dict[int, float] = field(default_factory=dict[int, float])
    indexed: dict[int, Fact] = field(default_factory=dict[int, Fact])

    def add(self, fact: Fact) -> int:
        """Add a new fact, which is due at once. Return its sequence number."""
        self.seq += 1
        self.waiting[self.seq] = fact
        return self.seq

    def due(self, now: float) -> list[TellFact]:
        """Return the facts to send now, in order: new ones, and those sent over a second ago."""
        due: list[TellFact] = []
        for seq, fact in self.waiting.items():
            if now - self.sent_at.get(seq, -REPEAT_S) >= REPEAT_S:
                self.sent_at[seq] = now
                due.append(TellFact(fact=fact, fact_id=self._id(seq)))
        return due

    def seen(self, state: ClusterState) -> None:
        """Compare the facts with the log. Facts that are in the log of `state` go to `indexed`.
        Facts that the log no longer has go back to `waiting`, and are sent again."""
        boot, last = state.facts.get(f"{self.node}/{self.process}", ("", 0))
        last = last if boot == self.boot else 0
        lost = {seq: fact for seq, fact in self.indexed.items() if seq > last}
        for seq in lost:
            del self.indexed[seq]
        self.waiting = {**lost, **self.waiting}
        for seq in [seq for seq in self.waiting if seq <= last]:
            self.indexed[seq] = self.waiting.pop(seq)
            self.sent_at.pop(seq, None)
        while len(self.indexed) > KEPT:
            del self.indexed[next(iter(self.indexed))]
        if self.waiting and next(iter(self.waiting)) > last + 1:
            self._renumber()

    def _renumber(self) -> None:
        """Number all stored facts again, from 1 and under a new boot id, because the log lacks an
        earlier fact that is no longer stored."""
        base, _, times = self.boot.partition("+")
        self.boot = Boot(f"{base}+{int(times or 0) + 1}")
        self.waiting = dict(enumerate([*self.indexed.values(), *self.waiting.values()], start=1))
        self.seq = len(self.waiting)
        self.indexed.clear()
        self.sent_at.clear()

    def _id(self, seq: int) -> FactId:
        return FactId(node=self.node, process=self.process, boot=self.boot, seq=seq)
