"""Computes what each rank of an instance did for a traced request, in times of the gateway's clock.

Pure. A rank's clock is known relative to the lead's, and the lead's relative to the gateway's, each
with an error: the errors add up. A transfer between two ranks is listed if both ranks reported it.
The two reports are matched by step, kind and number. A rank without timings is listed with the
reason.
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
from gateway.tracing.gateway_trace import GatewayTrace
from gateway.tracing.rounding import rounded

SILENT = "the rank sent no data in time"
NOTHING = "the rank has no data: it computed no row, or too many requests were traced"
JsonObject = dict[str, Any]
Crossing = tuple[Crosses, int, int, int, int]
"""Identifies a transfer between two ranks: (kind, step, number, sender, receiver)."""


def ranks_of(trace: GatewayTrace, node: NodeId, zero: float) -> list[JsonObject]:
    """Return the work of each rank, in order. `zero` is the instant of the request's first byte at
    the gateway of `node`. The list is empty if the runner has no group."""
    if trace.lead is None or not trace.lead.ranks:
        return []
    lead = trace.offset(node)
    ranks: list[JsonObject] = []
    for rank, of in enumerate(trace.lead.ranks):
        timings = trace.ranks.get(rank)
        named: JsonObject = {"rank": rank, "node": of}
        if timings is None or timings.spans is None:
            ranks.append({**named, "told": False, "why": SILENT if timings is None else NOTHING})
            continue
        clock = {
            "offset_s": rounded(lead.offset_s + timings.offset_s),
            "error_s": rounded(lead.error_s + timings.error_s),
        }
        since_s = _since_s(timings, timings.spans, lead.offset_s, zero)
        ranks.append({**named, "told": True, "clock": clock, **_spans(timings.spans, since_s)})
    return ranks


def links_of(trace: GatewayTrace, node: NodeId, zero: float) -> list[JsonObject]:
    """Return the transfers between ranks that both ranks reported, by send time. `zero` is the
    instant of the request's first byte at the gateway of `node`."""
    if trace.lead is None or not trace.ranks:
        return []
    lead = trace.offset(node)
    sent: dict[Crossing, tuple[float, float, int]] = {}
    had: dict[Crossing, tuple[float, float]] = {}
    for rank, timings in trace.ranks.items():
        if timings.spans is None:
            continue
        since_s = _since_s(timings, timings.spans, lead.offset_s, zero)
        for crossing in timings.spans.crossings:
            at_s = crossing.at_s + since_s
            if crossing.sent:
                key = (crossing.what, crossing.step, crossing.number, rank, crossing.peer)
                sent[key] = (at_s, timings.error_s, crossing.bytes_)
            else:
                had[crossing.what, crossing.step, crossing.number, crossing.peer, rank] = (
                    at_s,
                    timings.error_s,
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
    """Return the seconds of each part of each rank with timings, by names such as
    `rank0.compute`."""
    sums: dict[str, float] = {}
    for rank, timings in sorted(ranks.items()):
        for turn in () if timings.spans is None else timings.spans.turns:
            for name, seconds in _seconds(turn):
                key = f"rank{rank}.{name}"
                sums[key] = sums.get(key, 0.0) + seconds
    return {name: rounded(seconds) for name, seconds in sums.items()}


def _since_s(timings: RankTraced, spans: RankSpans, lead_offset_s: float, zero: float) -> float:
    """Return when the rank's spans begin, in seconds from the request's first byte."""
    return spans.began_at - timings.offset_s - lead_offset_s - zero


def _spans(spans: RankSpans, since_s: float) -> JsonObject:
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
