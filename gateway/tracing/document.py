"""Makes the stored form of a trace: one JSON object, with times in seconds from the request's first
byte.

Pure. `gateway` has the stages in the gateway. `lead` has the timings of rank 0's runner, on the
gateway's clock, or None without timings. `ranks` and `links` have the timings of all ranks and of
the transfers between them. `sums` has the seconds of each part by name, at the gateway and at the
runner; at the runner only those of the first choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bus.wire.ids import NodeId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Traced
from gateway.tracing.context import TracePlace
from gateway.tracing.gateway_trace import ClockOffset, GatewayTrace, StageSpan
from gateway.tracing.ranks import links_of, ranks_of, sums_of
from gateway.tracing.rounding import DIGITS, rounded


class TracedRequest(NamedTuple):
    """The facts of a request that its trace stores in addition to timings. `facts` are stored
    unchanged. `node` is the gateway's node. Instants are monotonic times of the gateway;
    `began_at_s` is wall-clock."""

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
    """A trace in its stored form: the JSON object (`told`), the seconds of each part by name, and
    the number of spans."""

    told: dict[str, Any]
    sums: dict[str, float]
    spans: int


def document_of(trace: GatewayTrace, request: TracedRequest) -> TraceDocument:
    """Return the stored form of a request that ends now."""
    zero = request.started_at
    stages = trace.stages(zero, request.read_at, request.ended_at)
    lead = None if trace.lead is None else _lead(trace, trace.lead, request)
    ranks, links = ranks_of(trace, request.node, zero), links_of(trace, request.node, zero)
    sums = {**_sums(stages, trace.lead), **sums_of(trace.ranks)}
    usage = request.usage
    document = {
        "request": request.request,
        "trace_id": request.place.trace_id,
        "span_id": request.place.span_id,
        "parent_id": request.place.parent_id,
        "began_at_s": round(request.began_at_s, DIGITS),
        "seconds": rounded(request.ended_at - zero),
        "node": request.node,
        **request.facts,
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
    return TraceDocument(document, sums, spans)


def _lead(trace: GatewayTrace, traced: Traced, request: TracedRequest) -> dict[str, Any]:
    clock = trace.offset(request.node)
    received_s = traced.received_at - clock.offset_s - request.started_at
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
    for span in () if traced is None else traced.spans:
        if span.choice == 0:
            part = f"lead.{span.name}"
            sums[part] = sums.get(part, 0.0) + span.ended_s - span.began_s
    return {name: rounded(seconds) for name, seconds in sums.items()}
