"""Decides which requests are traced, records the gateway's timings of each, and makes the stored
form of a trace. Pure. A trace has only names, codes and times, and no text of a prompt or an
answer.
"""

from gateway.requests.tracing.chrome import chrome_trace
from gateway.requests.tracing.context import (
    TRACEPARENT,
    TRACERESPONSE,
    TraceParent,
    TracePlace,
    parent_of,
    place_of,
    span_ids_below,
)
from gateway.requests.tracing.document import TraceDocument, TracedRequest, document_of
from gateway.requests.tracing.gateway_trace import GatewayTrace
from gateway.requests.tracing.parts import trace_parts
from gateway.requests.tracing.sampling import TraceChoice, TraceSampler, sampler_of

__all__ = [
    "TRACEPARENT",
    "TRACERESPONSE",
    "GatewayTrace",
    "TraceChoice",
    "TraceDocument",
    "TraceParent",
    "TracePlace",
    "TraceSampler",
    "TracedRequest",
    "chrome_trace",
    "document_of",
    "parent_of",
    "place_of",
    "sampler_of",
    "span_ids_below",
    "trace_parts",
]
