"""Tracks how much of the log each candidate has on disk, and holds replies back until their log
index is safe.

Pure. In a term with voters an index is *committed* once a majority has it on disk; only entries of
the present term count, and earlier ones follow (Raft 5.4.2). Without voters it is *replicated* once
another candidate has it on disk too. A reply is sent when its index is as safe as it can become,
and never claims more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.commands import Acknowledged

REPLICATED_WITHIN_S = 0.25
"""Without voters, a reply waits this many seconds for another candidate to append the entry."""

Durability = Literal["majority", "replicated", "local", "volatile"]


@dataclass(slots=True)
class Acks:
    """The acknowledgements of one term. `opened`: the index of its first event. `durable`: the last
    index on our own disk. `appended`: the last index on the disk of each other candidate."""

    opened: int = 0
    durable: int = 0
    appended: dict[NodeId, int] = field(default_factory=dict[NodeId, int])

    def record(self, node: NodeId, index: int) -> None:
        """Record that another candidate's journal has our log up to `index`."""
        self.appended[node] = max(index, self.appended.get(node, 0))

    def committed(self, voters: Collection[NodeId], me: NodeId) -> int:
        """Return the highest index that a majority of the voters has on disk; 0 until a majority
        has an event of this term."""
        indexes = [self.durable if v == me else self.appended.get(v, 0) for v in voters]
        index = sorted(indexes, reverse=True)[len(indexes) // 2] if indexes else 0
        return index if index >= self.opened else 0

    def replicated(self) -> int:
        """Return the highest index that any other candidate has on disk."""
        return max(self.appended.values(), default=0)


@dataclass(frozen=True, slots=True)
class LogSafety:
    """How far the log is safe now. `committed` is None without votes. `helped`: another living
    candidate can store entries of our log."""

    committed: int | None
    replicated: int
    durable: int
    degraded: bool
    helped: bool

    def worth(self, index: int, waited_s: float) -> Durability | None:
        """Return how safe the log index `index` is after `waited_s` of waiting; None: wait
        longer."""
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
    """Replies that wait until their log entry is safe, oldest first, each with the time since which
    it waits. At most one per client and command."""

    waiting: dict[tuple[bytes, CommandId], tuple[Acknowledged, float]] = field(
        default_factory=dict[tuple[bytes, CommandId], tuple[Acknowledged, float]]
    )

    def add(self, asker: bytes, answer: Acknowledged, now: float) -> None:
        """Hold a reply until its log entry is safe. If a reply to the same command waits already,
        the new reply replaces it, and counts as waiting since then."""
        key = (asker, answer.command_id)
        _, since_at = self.waiting.get(key, (answer, now))
        self.waiting[key] = (answer, since_at)

    def ripe(self, standing: LogSafety, now: float) -> list[tuple[bytes, Acknowledged]]:
        """Remove and return the replies that can be sent now, each with the durability of its
        entry."""
        ripe: list[tuple[bytes, Acknowledged]] = []
        for key, (answer, since_at) in list(self.waiting.items()):
            worth = standing.worth(answer.index, now - since_at)
            if worth is not None:
                del self.waiting[key]
                ripe.append((key[0], answer.model_copy(update={"durability": worth})))
        return ripe

    def drop(self) -> None:
        """Drop all waiting replies. Our term has ended, and the clients repeat their commands to
        the next leader."""
        self.waiting.clear()
