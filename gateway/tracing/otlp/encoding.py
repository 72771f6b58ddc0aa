"""Encodes spans as OTLP bytes, and decodes the reply of a collector.

Pure. No other module imports `opentelemetry` (the extra `otlp`), and this one is loaded only to
export traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from gateway.tracing.otlp.spans import OtlpSpan, Value

SCOPE = "shoal.gateway"
_SAMPLED = 1


class SpanEncoder:
    """Encodes the traces of one HTTP request to a collector; `resource` identifies the gateway that
    sends them."""

    def __init__(self, resource: Mapping[str, Value]) -> None:
        self._request = ExportTraceServiceRequest()
        of = self._request.resource_spans.add()
        _add(of.resource.attributes, resource)
        self._scope: ScopeSpans = of.scope_spans.add()
        self._scope.scope.name = SCOPE

    def add(self, trace_id: str, spans: Iterable[OtlpSpan]) -> int:
        """Add the spans of a trace. Return how many spans there were."""
        of, before = bytes.fromhex(trace_id), len(self._scope.spans)
        for span in spans:
            _fill(self._scope.spans.add(), of, span)
        return len(self._scope.spans) - before

    def body(self) -> bytes:
        return self._request.SerializeToString()


def refused_of(answer: bytes) -> tuple[int, str]:
    """Return how many spans a collector refused in a 200 answer, and why."""
    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return 0, ""
    return partial.rejected_spans, partial.error_message


def _fill(span: Span, trace_id: bytes, source: OtlpSpan) -> None:
    span.trace_id = trace_id
    span.span_id = bytes.fromhex(source.span_id)
    span.parent_span_id = bytes.fromhex(source.parent_id)
    span.name = source.name
    span.kind = Span.SPAN_KIND_SERVER if source.serves else Span.SPAN_KIND_INTERNAL
    span.start_time_unix_nano = source.began_ns
    span.end_time_unix_nano = source.ended_ns
    span.flags = _SAMPLED
    _add(span.attributes, source.attributes)
    if source.error:
        span.status.code = Status.STATUS_CODE_ERROR
        span.status.message = source.error


def _add(pairs: Any, attributes: Mapping[str, Value]) -> None:
    """Add attributes to a repeated field of a message. Each attribute is made in place, because
    building messages from keywords and copying them takes several times as long."""
    for name, value in attributes.items():
        pair = pairs.add()
        pair.key = name
        _put(pair.value, value)


def _put(to: AnyValue, value: Value) -> None:
    match value:
        case str():
            to.string_value = value
        case bool():
            to.bool_value = value
        case int():
            to.int_value = value
        case float():
            to.double_value = value
        case _:
            for text in value:
                to.array_value.values.add().string_value = text
