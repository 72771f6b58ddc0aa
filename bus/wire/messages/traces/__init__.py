"""Messages in which the ranks of a group report their work on a traced request. Pure."""

from bus.wire.messages.traces.rank_spans import (
    RANK_PARTS,
    Crosses,
    RankCrossing,
    RankPart,
    RankPartName,
    RankSpans,
    RankTotal,
    RankTraced,
    RankTurn,
    RankTurnName,
)

__all__ = [
    "RANK_PARTS",
    "Crosses",
    "RankCrossing",
    "RankPart",
    "RankPartName",
    "RankSpans",
    "RankTotal",
    "RankTraced",
    "RankTurn",
    "RankTurnName",
]
