"""Talks to the installed packages: opens the trace exporter if the options ask for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from bus.links.collector import HttpCollector
from bus.process.logs import Log
from gateway.options import Options
from gateway.requests.otlp.spans import Value

Outcome = Literal["sent", "refused", "dropped"]
"""The outcome of a span: the collector accepted it, refused it, or did not receive it."""
Count = Callable[[Outcome, int], None]
MISSING = (
    "otlp.endpoint is set, but traces are not exported: run "
    "`pip install 'shoal[otlp]'` in shoal's environment, then `shoal restart`"
)
PATH = "/v1/traces"
ANSWER_S = 10.0
"""Time limit for one answer of a collector."""


@dataclass(frozen=True, slots=True)
class EndedTrace:
    """A trace as it is kept (JSON), its number of spans, and its request's attributes."""

    trace: bytes
    spans: int
    attributes: Mapping[str, Value]


class TraceSink(Protocol):
    """Something that accepts the traces of ended requests."""

    def offer(self, ended: EndedTrace) -> None:
        """Accept a trace. Never waits."""
        ...

    def close(self) -> None:
        """Send the remaining traces, for a moment. Blocks."""
        ...


def open_exporter(options: Options, log: Log, count: Count) -> TraceSink | None:
    """Return the exporter that the options call for; None if traces are not exported."""
    if not options.otlp_endpoint:
        return None
    try:
        from gateway.requests.otlp.exporter import TraceExporter
    except ImportError:
        log.error(MISSING)
        return None
    collector = trace_collector(options.otlp_endpoint, options.otlp_headers, ANSWER_S)
    resource: dict[str, Value] = {
        "service.name": "shoal",
        "service.version": options.version,
        "service.instance.id": str(options.node),
        "host.name": options.node_name,
    }
    return TraceExporter(collector, resource, log, count)


def trace_collector(endpoint: str, headers: Mapping[str, str], timeout_s: float) -> HttpCollector:
    """Return the collector at `endpoint`; `PATH` is added to an address without it."""
    url = endpoint.rstrip("/")
    url = url if url.endswith(PATH) else url + PATH
    return HttpCollector(url, {**headers, "content-type": "application/x-protobuf"}, timeout_s)
