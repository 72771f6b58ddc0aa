"""Talks to the client: decides whether a request is traced, and tells the client in a header."""

from __future__ import annotations

from dataclasses import replace

from gateway.exchange.flow import Flow
from gateway.exchange.parts import Parts
from gateway.tracing import TRACERESPONSE


async def choose_trace(parts: Parts, flow: Flow) -> Flow:
    """Trace the request if its body or the client's trace header asks for it, or by random choice.
    A body that is forwarded to a provider is not traced."""
    if flow.trial is not None and flow.trial.forwards:
        return flow
    requests = flow.parsed.requests
    traced = parts.tracing.choose(by_client=flow.parsed.extras.trace, parent=flow.head.parent)
    if traced and requests:
        place = flow.place(requests[0].request_id)
        flow.http.reply.set_header(TRACERESPONSE, place.header)
    return replace(flow, traced=traced)
