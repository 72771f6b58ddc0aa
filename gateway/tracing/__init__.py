"""Decides which requests are traced, records the gateway's timings of each, and makes the stored
form of a trace. A trace has only names, codes and times, and no text of a prompt or an answer.

Pure, except for the package `otlp`, which sends traces to a collector. That package is imported
only when it is used, so no other module loads the exporter.
"""

from typing import TYPE_CHECKING

from gateway.tracing.chrome import chrome_trace
from gateway.tracing.context import (
    TRACEPARENT,
    TRACERESPONSE,
    TraceParent,
    TracePlace,
    parent_of,
    place_of,
    span_ids_below,
)
from gateway.tracing.document import TraceDocument, TracedRequest, document_of
from gateway.tracing.gateway_trace import GatewayTrace
from gateway.tracing.parts import trace_parts
from gateway.tracing.sampling import TraceChoice, TraceSampler, sampler_of

if TYPE_CHECKING:
    from gateway.tracing import otlp

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
    "otlp",
    "parent_of",
    "place_of",
    "sampler_of",
    "span_ids_below",
    "trace_parts",
]
