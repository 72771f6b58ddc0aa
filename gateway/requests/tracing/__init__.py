"""Traces of requests: which are traced, what a gateway notes of one, what is kept and shown of it.

Pure. A trace has names, codes and times alone: no word of a prompt or an answer.
"""

from gateway.requests.tracing.chrome import chrome_trace
from gateway.requests.tracing.document import TraceDocument, TracedRequest, document_of
from gateway.requests.tracing.gateway_trace import GatewayTrace
from gateway.requests.tracing.sampling import TraceChoice, TraceSampler, sampler_of

__all__ = [
    "GatewayTrace",
    "TraceChoice",
    "TraceDocument",
    "TraceSampler",
    "TracedRequest",
    "chrome_trace",
    "document_of",
    "sampler_of",
]
