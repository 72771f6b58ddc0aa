"""What a node tells of its store: bytes by where they came from, what would go next, what went.

Pure. Of very many models those are told that were fetched, in the order in which they would go, and
how many there are besides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bus.wire.ids import NodeId
from bus.wire.messages.weights import (
    LetGo,
    PurgeState,
    StorageReading,
    StoredKind,
    StoredModel,
)
from worker.eviction.choice import in_order
from worker.eviction.holdings import Holding

MOST_TOLD, MOST_LET_GO = 300, 20
WHY_CHARACTERS = 400


@dataclass(slots=True)
class Told:
    """What is told beside what lies there. `let_go` is the last that went, oldest first."""

    node: NodeId
    limit_bytes: int
    keeps_all: bool
    disk_free_bytes: int = 0
    let_go: deque[LetGo] = field(default_factory=lambda: deque(maxlen=MOST_LET_GO))


def stored(holding: Holding) -> StoredModel:
    """Return what is told of one."""
    return StoredModel(
        model=holding.model,
        path=holding.path,
        size_bytes=holding.size_bytes,
        what=holding.what,
        in_part=holding.in_part,
        used_at_s=holding.used_at_s,
        why=holding.why[:WHY_CHARACTERS],
    )


def reading_of(
    told: Told, holdings: Sequence[Holding], purges: Iterable[PurgeState]
) -> StorageReading:
    """Return what this node tells of its store."""
    going = in_order(holdings)
    stays = [one for one in holdings if one not in going]
    stays.sort(key=lambda one: (one.what != "fetched", one.model, one.path))
    models = [stored(one) for one in (*going, *stays)]
    return StorageReading(
        node=told.node,
        limit_bytes=told.limit_bytes,
        keeps_all=told.keeps_all,
        disk_free_bytes=told.disk_free_bytes,
        fetched_bytes=_bytes_of(holdings, "fetched"),
        put_bytes=_bytes_of(holdings, "put"),
        made_bytes=_bytes_of(holdings, "made"),
        bundled_bytes=_bytes_of(holdings, "bundled"),
        models=tuple(models[:MOST_TOLD]),
        more=max(0, len(models) - MOST_TOLD),
        let_go=tuple(told.let_go),
        purges=tuple(purges),
    )


def _bytes_of(holdings: Iterable[Holding], what: StoredKind) -> int:
    return sum(one.size_bytes for one in holdings if one.what == what)
