"""What the ranks of a runner's group did for a traced request, by the gateway's clock.

Pure. A rank's clock is known from the lead's, with an error, and the lead's from ours, with
another: both add up. A link's crossing is told where both of its ends were, one that sent and one
that had it; which belong together follows from the step, the kind and the number in it. A rank
that told nothing is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bus.wire.ids import NodeId
from bus.wire.messages.traces import (
    RANK_PARTS,
    Crosses,
    RankSpans,
    RankTraced,
    RankTurn,
)
from gateway.requests.tracing.gateway_trace import GatewayTrace
from gateway.requests.tracing.rounding import rounded

SILENT = "it sent no data in time"
NOTHING = "it has no data: it computed no row, or too many requests were traced"
Told = dict[str, Any]
Crossing = tuple[Crosses, int, int, int, int]
"""(kind, step, number, who sends, who has it)."""


def ranks_of(trace: GatewayTrace, node: NodeId, zero: float) -> list[Told]:
    """Return what each rank did, in their order; `zero` is the request's first byte at the gateway
    of `node`. Empty where the runner has no group."""
    if trace.lead is None or not trace.lead.ranks:
        return []
    lead = trace.offset(node)
    found: list[Told] = []
    for rank, of in enumerate(trace.lead.ranks):
        told = trace.ranks.get(rank)
        named: Told = {"rank": rank, "node": of}
        if told is None or told.spans is None:
            found.append({**named, "told": False, "why": SILENT if told is None else NOTHING})
            continue
        clock = {
            "offset_s": rounded(lead.offset_s + told.offset_s),
            "error_s": rounded(lead.error_s + told.error_s),
        }
        since_s = _since_s(told, told.spans, lead.offset_s, zero)
        found.append({**named, "told": True, "clock": clock, **_spans(told.spans, since_s)})
    return found


def links_of(trace: GatewayTrace, node: NodeId, zero: float) -> list[Told]:
    """Return what went from rank to rank and is known at both ends, by when it was sent."""
    if trace.lead is None or not trace.ranks:
        return []
    lead = trace.offset(node)
    sent: dict[Crossing, tuple[float, float, int]] = {}
    had: dict[Crossing, tuple[float, float]] = {}
    for rank, told in trace.ranks.items():
        if told.spans is None:
            continue
        since_s = _since_s(told, told.spans, lead.offset_s, zero)
        for crossing in told.spans.crossings:
            at_s = crossing.at_s + since_s
            if crossing.sent:
                key = (crossing.what, crossing.step, crossing.number, rank, crossing.peer)
                sent[key] = (at_s, told.error_s, crossing.bytes_)
            else:
                had[crossing.what, crossing.step, crossing.number, crossing.peer, rank] = (
                    at_s,
                    told.error_s,
                )
    pairs = [(key, sent[key], had[key]) for key in sent.keys() & had.keys()]
    return [
        {
            "what": what,
            "step": step,
            "number": number,
            "from": source,
            "to": target,
            "bytes": bytes_,
            "sent_s": rounded(sent_s),
            "had_s": rounded(had_s),
            "error_s": rounded(error_s + other_s),
        }
        for (what, step, number, source, target), (sent_s, error_s, bytes_), (had_s, other_s) in (
            sorted(pairs, key=lambda pair: (pair[1][0], pair[0]))
        )
    ]


def sums_of(ranks: Mapping[int, RankTraced]) -> dict[str, float]:
    """Return the seconds of each part of each rank that told, by `rank0.compute` and its like."""
    sums: dict[str, float] = {}
    for rank, told in sorted(ranks.items()):
        for turn in () if told.spans is None else told.spans.turns:
            for name, seconds in _seconds(turn):
                key = f"rank{rank}.{name}"
                sums[key] = sums.get(key, 0.0) + seconds
    return {name: rounded(seconds) for name, seconds in sums.items()}


def _since_s(told: RankTraced, spans: RankSpans, lead_offset_s: float, zero: float) -> float:
    """Return when the rank's seconds begin, in seconds from the request's first byte on."""
    return spans.began_at - told.offset_s - lead_offset_s - zero


def _spans(spans: RankSpans, since_s: float) -> Told:
    return {
        "began_s": rounded(since_s),
        "ended_s": rounded(since_s + spans.ended_s),
        "turns": [
            {
                "name": turn.name,
                "step": turn.step,
                "steps": turn.steps,
                "began_s": rounded(since_s + turn.began_s),
                "ended_s": rounded(since_s + turn.ended_s),
                "tokens": turn.tokens,
                "seconds": {name: rounded(seconds) for name, seconds in _seconds(turn)},
            }
            for turn in spans.turns
        ],
        "parts": [
            {
                "name": part.name,
                "began_s": rounded(since_s + part.began_s),
                "ended_s": rounded(since_s + part.ended_s),
            }
            for part in spans.parts
        ],
        "totals": [
            {
                "what": total.what,
                "peer": total.peer,
                "sent": total.sent,
                "count": total.count,
                "bytes": total.bytes_,
            }
            for total in spans.totals
        ],
    }


def _seconds(turn: RankTurn) -> Iterator[tuple[str, float]]:
    return (
        (name, seconds)
        for name, seconds in zip(RANK_PARTS, turn.seconds, strict=True)
        if seconds > 0.0
    )
