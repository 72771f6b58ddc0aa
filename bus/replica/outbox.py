"""Facts kept until they are seen indexed, by one holder or a later one.

Pure. A witness numbers its facts 1, 2, 3, ... within a boot; they are told in that order and
again every second until a mirror shows them indexed. Telling twice is harmless: `apply`
knows (node, process, boot, seq). A log that gives way to another one may take back what was
indexed: then the facts that the other does not know are told again, which is why the last
`KEPT` are kept. Where that is not enough they are renumbered under a boot of their own.
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
    """The facts of one witness, oldest first; `told_at` is when each was last told; `indexed`
    are the latest that were seen in the log. `waiting` and `indexed` share no number."""

    node: NodeId
    process: str
    boot: Boot
    seq: int = 0
    waiting: dict[int, Fact] = field(default_factory=dict[int, Fact])
    told_at: dict[int, float] = field(default_factory=dict[int, float])
    indexed: dict[int, Fact] = field(default_factory=dict[int, Fact])

    def add(self, fact: Fact) -> int:
        """Keep a new fact; it is due at once. Returns its sequence number."""
        self.seq += 1
        self.waiting[self.seq] = fact
        return self.seq

    def due(self, now: float) -> list[TellFact]:
        """Return the facts to tell now, in order: never told, or told over a second ago."""
        due: list[TellFact] = []
        for seq, fact in self.waiting.items():
            if now - self.told_at.get(seq, -REPEAT_S) >= REPEAT_S:
                self.told_at[seq] = now
                due.append(TellFact(fact=fact, fact_id=self._id(seq)))
        return due

    def seen(self, state: ClusterState) -> None:
        """Set aside what the state shows as indexed; bring back what it shows no longer."""
        boot, last = state.facts.get(f"{self.node}/{self.process}", ("", 0))
        last = last if boot == self.boot else 0
        lost = {seq: fact for seq, fact in self.indexed.items() if seq > last}
        for seq in lost:
            del self.indexed[seq]
        self.waiting = {**lost, **self.waiting}
        for seq in [seq for seq in self.waiting if seq <= last]:
            self.indexed[seq] = self.waiting.pop(seq)
            self.told_at.pop(seq, None)
        while len(self.indexed) > KEPT:
            del self.indexed[next(iter(self.indexed))]
        if self.waiting and next(iter(self.waiting)) > last + 1:
            self._renumber()

    def _renumber(self) -> None:
        """Begin a boot anew with the facts kept: the log lacks one that is kept no more."""
        base, _, times = self.boot.partition("+")
        self.boot = Boot(f"{base}+{int(times or 0) + 1}")
        self.waiting = dict(enumerate([*self.indexed.values(), *self.waiting.values()], start=1))
        self.seq = len(self.waiting)
        self.indexed.clear()
        self.told_at.clear()

    def _id(self, seq: int) -> FactId:
        return FactId(node=self.node, process=self.process, boot=self.boot, seq=seq)
