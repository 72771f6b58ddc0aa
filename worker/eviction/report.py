"""A node's report about its stored models: bytes by origin, the next deletions, and the past
deletions.

Pure. If there are very many models, the report lists the fetched ones in the order of deletion, and
counts the others.
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
    """Facts for the report that the list of models does not contain. `let_go` are the last
    deletions, oldest first."""

    node: NodeId
    limit_bytes: int
    keeps_all: bool
    disk_free_bytes: int = 0
    let_go: deque[LetGo] = field(default_factory=lambda: deque(maxlen=MOST_LET_GO))


def stored(holding: Holding) -> StoredModel:
    """Return the entry of a model in the report."""
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
    report: Told, holdings: Sequence[Holding], purges: Iterable[PurgeState]
) -> StorageReading:
    """Return the report about the stored models of this node."""
    going = in_order(holdings)
    stays = [holding for holding in holdings if holding not in going]
    stays.sort(key=lambda holding: (holding.what != "fetched", holding.model, holding.path))
    models = [stored(holding) for holding in (*going, *stays)]
    return StorageReading(
        node=report.node,
        limit_bytes=report.limit_bytes,
        keeps_all=report.keeps_all,
        disk_free_bytes=report.disk_free_bytes,
        fetched_bytes=_bytes_of(holdings, "fetched"),
        put_bytes=_bytes_of(holdings, "put"),
        made_bytes=_bytes_of(holdings, "made"),
        bundled_bytes=_bytes_of(holdings, "bundled"),
        models=tuple(models[:MOST_TOLD]),
        more=max(0, len(models) - MOST_TOLD),
        let_go=tuple(report.let_go),
        purges=tuple(purges),
    )


def _bytes_of(holdings: Iterable[Holding], what: StoredKind) -> int:
    return sum(holding.size_bytes for holding in holdings if holding.what == what)
