"""Spans as the bytes of OTLP, and what a collector answers to them.

Pure. The only home of `opentelemetry` (the extra `otlp`): loaded where traces are exported.
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

from gateway.requests.otlp.spans import OtlpSpan, Value

SCOPE = "shoal.gateway"
_SAMPLED = 1


class SpanEncoder:
    """Makes bodies of requests to a collector, of whole traces; `resource` says whose they are."""

    def __init__(self, resource: Mapping[str, Value]) -> None:
        self._request = ExportTraceServiceRequest()
        of = self._request.resource_spans.add()
        _add(of.resource.attributes, resource)
        self._scope: ScopeSpans = of.scope_spans.add()
        self._scope.scope.name = SCOPE

    def add(self, trace_id: str, spans: Iterable[OtlpSpan]) -> int:
        """Add the spans of a trace; return how many."""
        of, before = bytes.fromhex(trace_id), len(self._scope.spans)
        for span in spans:
            _fill(self._scope.spans.add(), of, span)
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


def _fill(span: Span, trace_id: bytes, one: OtlpSpan) -> None:
    span.trace_id = trace_id
    span.span_id = bytes.fromhex(one.span_id)
    span.parent_span_id = bytes.fromhex(one.parent_id)
    span.name = one.name
    span.kind = Span.SPAN_KIND_SERVER if one.serves else Span.SPAN_KIND_INTERNAL
    span.start_time_unix_nano = one.began_ns
    span.end_time_unix_nano = one.ended_ns
    span.flags = _SAMPLED
    _add(span.attributes, one.attributes)
    if one.error:
        span.status.code = Status.STATUS_CODE_ERROR
        span.status.message = one.error


def _add(pairs: Any, attributes: Mapping[str, Value]) -> None:
    """Add attributes to a repeated field, each made in its place: to make messages from keywords,
    and to copy them there, takes several times as long."""
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
            for one in value:
                to.array_value.values.add().string_value = one
