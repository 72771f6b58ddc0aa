"""What is kept of a traced request: one JSON object, with times in seconds from its first byte on.

Pure. `gateway` has the stages, `lead` what the runner told, brought to the gateway's clock, None
where it told nothing; `ranks` and `links` are those of its group; `sums` the seconds of each name
on either side, those of the first choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bus.wire.ids import NodeId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Traced
from gateway.requests.tracing.context import TracePlace
from gateway.requests.tracing.gateway_trace import ClockOffset, GatewayTrace, StageSpan
from gateway.requests.tracing.ranks import links_of, ranks_of, sums_of
from gateway.requests.tracing.rounding import DIGITS, rounded


class TracedRequest(NamedTuple):
    """What is known of a request beside its times. `facts` are told as they are, `node` is that of
    the gateway; instants are monotonic ones of it, `began_at_s` is wall-clock."""

    request: str
    place: TracePlace
    node: NodeId
    began_at_s: float
    started_at: float
    read_at: float | None
    ended_at: float
    facts: dict[str, Any]
    usage: Usage | None


class TraceDocument(NamedTuple):
    """The object, the seconds by name, and how many spans there are."""

    told: dict[str, Any]
    sums: dict[str, float]
    spans: int


def document_of(trace: GatewayTrace, known: TracedRequest) -> TraceDocument:
    """Return what is kept of a request that ends now."""
    zero = known.started_at
    stages = trace.stages(zero, known.read_at, known.ended_at)
    lead = None if trace.lead is None else _lead(trace, trace.lead, known)
    ranks, links = ranks_of(trace, known.node, zero), links_of(trace, known.node, zero)
    sums = {**_sums(stages, trace.lead), **sums_of(trace.ranks)}
    usage = known.usage
    told = {
        "request": known.request,
        "trace_id": known.place.trace_id,
        "span_id": known.place.span_id,
        "parent_id": known.place.parent_id,
        "began_at_s": round(known.began_at_s, DIGITS),
        "seconds": rounded(known.ended_at - zero),
        "node": known.node,
        **known.facts,
        "usage": None if usage is None else usage.model_dump(mode="json"),
        "gateway": [
            {
                "name": stage.name,
                "began_s": rounded(stage.began_at - zero),
                "ended_s": rounded(stage.ended_at - zero),
            }
            for stage in stages
        ],
        "lead": lead,
        "ranks": ranks,
        "links": links,
        "sums": sums,
    }
    spans = len(stages) + (0 if trace.lead is None else len(trace.lead.spans))
    spans += sum(len(rank.get("turns", ())) + len(rank.get("parts", ())) for rank in ranks)
    return TraceDocument(told, sums, spans)


def _lead(trace: GatewayTrace, traced: Traced, known: TracedRequest) -> dict[str, Any]:
    clock = trace.offset(known.node)
    received_s = traced.received_at - clock.offset_s - known.started_at
    return {
        "instance": trace.instance,
        "node": trace.node,
        "clock": _clock(clock),
        "received_s": rounded(received_s),
        "told_s": rounded(received_s + traced.told_at - traced.received_at),
        "choices": traced.choices,
        "spans": [
            {
                "name": span.name,
                "choice": span.choice,
                "began_s": rounded(received_s + span.began_s),
                "ended_s": rounded(received_s + span.ended_s),
                "tokens": span.tokens,
                "steps": span.steps,
                "longest_s": rounded(span.longest_s),
                "computed_s": rounded(span.computed_s),
            }
            for span in traced.spans
        ],
    }


def _clock(clock: ClockOffset) -> dict[str, Any]:
    return {
        "how": clock.how,
        "offset_s": rounded(clock.offset_s),
        "error_s": rounded(clock.error_s),
    }


def _sums(stages: Sequence[StageSpan], traced: Traced | None) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, began_at, ended_at in stages:
        part = f"gateway.{name}"
        sums[part] = sums.get(part, 0.0) + ended_at - began_at
    for one in () if traced is None else traced.spans:
        if one.choice == 0:
            part = f"lead.{one.name}"
            sums[part] = sums.get(part, 0.0) + one.ended_s - one.began_s
    return {name: rounded(seconds) for name, seconds in sums.items()}
