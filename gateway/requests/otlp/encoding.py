"""Spans as the bytes of OTLP, and what a collector answers to them.

Pure. The only home of `opentelemetry` (the extra `otlp`): loaded where traces are exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from gateway.requests.otlp.spans import OtlpSpan, Value

SCOPE = "shoal.gateway"
_SAMPLED = 1


class SpanEncoder:
    """Makes bodies of requests to a collector, of whole traces; `resource` says whose they are."""

    def __init__(self, resource: Mapping[str, Value]) -> None:
        self._request = ExportTraceServiceRequest()
        of = self._request.resource_spans.add()
        of.resource.attributes.extend(_pairs(resource))
        self._scope: ScopeSpans = of.scope_spans.add()
        self._scope.scope.name = SCOPE

    def add(self, trace_id: str, spans: Iterable[OtlpSpan]) -> int:
        """Add the spans of a trace; return how many."""
        before = len(self._scope.spans)
        self._scope.spans.extend(_span(bytes.fromhex(trace_id), one) for one in spans)
        return len(self._scope.spans) - before

    def body(self) -> bytes:
        """Return the body."""
        return self._request.SerializeToString()


def refused_of(answer: bytes) -> tuple[int, str]:
    """Return how many spans a collector has refused that answered with 200, and why."""
    try:
        told = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return 0, ""
    return told.rejected_spans, told.error_message


def _span(trace_id: bytes, one: OtlpSpan) -> Span:
    made = Span(
        trace_id=trace_id,
        span_id=bytes.fromhex(one.span_id),
        parent_span_id=bytes.fromhex(one.parent_id),
        name=one.name,
        kind=Span.SPAN_KIND_SERVER if one.serves else Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=one.began_ns,
        end_time_unix_nano=one.ended_ns,
        attributes=_pairs(one.attributes),
        flags=_SAMPLED,
    )
    if one.error:
        made.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=one.error))
    return made


def _pairs(attributes: Mapping[str, Value]) -> list[KeyValue]:
    return [KeyValue(key=name, value=_value(value)) for name, value in attributes.items()]


def _value(value: Value) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case _:
            return AnyValue(array_value=ArrayValue(values=[_value(one) for one in value]))
