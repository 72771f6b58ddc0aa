"""A collector of traces for tests: takes OTLP over HTTP, and tells what came."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.harness.http_servers import running


@dataclass
class TakenRequest:
    """One request: where it went, with which headers, and the spans of whom."""

    path: str
    headers: Mapping[str, str]
    body: ExportTraceServiceRequest

    @property
    def spans(self) -> list[Span]:
        return [
            span for of in self.body.resource_spans for one in of.scope_spans for span in one.spans
        ]


@dataclass
class TestCollector:
    """What has come. `answers` are statuses for the next requests, then it is 200 each time;
    `refuses` is how many spans it says it refused; it answers none while `holds` is clear."""

    __test__ = False

    port: int = 0
    taken: list[TakenRequest] = field(default_factory=list[TakenRequest])
    answers: list[int] = field(default_factory=list[int])
    refuses: int = 0
    holds: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[Span]:
        return [span for one in self.taken for span in one.spans]

    def of_trace(self, trace_id: str) -> list[Span]:
        return [one for one in self.spans if one.trace_id.hex() == trace_id]


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    return {one.key: _plain(one.value) for one in _listed(pairs)}


def _listed(pairs: Any) -> list[KeyValue]:
    return list(pairs)


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(one) for one in value.array_value.values]
    return getattr(value, str(kind))


@contextmanager
def collecting(port: int = 0) -> Iterator[TestCollector]:
    """A collector, for as long as the block lasts."""
    made = TestCollector()
    made.holds.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            body = ExportTraceServiceRequest.FromString(content)
            headers = {name.lower(): value for name, value in self.headers.items()}
            made.holds.wait(30)
            status = made.answers.pop(0) if made.answers else 200
            told = ExportTraceServiceResponse()
            if status == 200:
                made.taken.append(TakenRequest(self.path, headers, body))
                if made.refuses:
                    part = ExportTracePartialSuccess(
                        rejected_spans=made.refuses, error_message="too many"
                    )
                    told.partial_success.CopyFrom(part)
            answer = told.SerializeToString()
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    with running(server) as made.port:
        try:
            yield made
        finally:
            made.holds.set()
