"""Who has appended how far, and which answers wait for that.

Pure. Within a term of voters an index is *committed* once a majority of them has it on disk;
only entries of the present term are counted so, and what precedes them follows (Raft 5.4.2).
Without voters it is *replicated* once any other candidate has it on disk beside us. An answer
is given when its index is as safe as it can become, and never said to be safer than it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.commands import Acknowledged

REPLICATED_WITHIN_S = 0.25
"""An answer waits so long for another candidate to append, where no votes are taken."""

Durability = Literal["majority", "replicated", "local", "volatile"]


@dataclass(slots=True)
class Acks:
    """One term's. `opened` is the index of its first event, `durable` what our own disk holds;
    `appended` what the others said."""

    opened: int = 0
    durable: int = 0
    appended: dict[NodeId, int] = field(default_factory=dict[NodeId, int])

    def heard(self, node: NodeId, index: int) -> None:
        """Note that another candidate's journal holds our log up to `index`."""
        self.appended[node] = max(index, self.appended.get(node, 0))

    def committed(self, voters: Collection[NodeId], me: NodeId) -> int:
        """Return the highest index that a majority of the voters has on disk; 0 before an event of
        this term has come so far."""
        known = [self.durable if v == me else self.appended.get(v, 0) for v in voters]
        index = sorted(known, reverse=True)[len(known) // 2] if known else 0
        return index if index >= self.opened else 0

    def replicated(self) -> int:
        """Return the highest index that any other candidate has on disk."""
        return max(self.appended.values(), default=0)


@dataclass(frozen=True, slots=True)
class LogSafety:
    """How safe the log is now. `committed` is None where no votes are taken; `helped` says that
    another candidate that could append lives."""

    committed: int | None
    replicated: int
    durable: int
    degraded: bool
    helped: bool

    def worth(self, index: int, waited_s: float) -> Durability | None:
        """Return what may be said of `index` after `waited_s`; None: wait."""
        if self.committed is not None:
            return "majority" if self.committed >= index else None
        if min(self.replicated, self.durable) >= index:
            return "replicated"
        if self.helped and waited_s < REPLICATED_WITHIN_S:
            return None
        if self.degraded:
            return "volatile"
        return "local" if self.durable >= index else None


@dataclass(slots=True)
class Answers:
    """Answers that wait, each with the instant since when: at most one for each asker and command,
    oldest first."""

    waiting: dict[tuple[bytes, CommandId], tuple[Acknowledged, float]] = field(
        default_factory=dict[tuple[bytes, CommandId], tuple[Acknowledged, float]]
    )

    def add(self, asker: bytes, answer: Acknowledged, now: float) -> None:
        """Keep an answer until its index is safe; one that waits already goes on waiting."""
        key = (asker, answer.command_id)
        _, since_at = self.waiting.get(key, (answer, now))
        self.waiting[key] = (answer, since_at)

    def ripe(self, standing: LogSafety, now: float) -> list[tuple[bytes, Acknowledged]]:
        """Take out and return the answers that can be given now, with what each is worth."""
        found: list[tuple[bytes, Acknowledged]] = []
        for key, (answer, since_at) in list(self.waiting.items()):
            worth = standing.worth(answer.index, now - since_at)
            if worth is not None:
                del self.waiting[key]
                found.append((key[0], answer.model_copy(update={"durability": worth})))
        return found

    def drop(self) -> None:
        """Forget all: the term is lost, and the askers repeat their questions elsewhere."""
        self.waiting.clear()
