"""Talks to the installed packages: opens the trace exporter if the options ask for one."""

from __future__ import annotations

from collections.abc import Mapping

from bus.process.installation import command_to_add
from bus.process.logs import Log
from gateway.tracing.otlp.collector import HttpCollector
from gateway.tracing.otlp.ended import Count, TraceSink
from gateway.tracing.otlp.spans import Value
from gateway.view.options import Options

PACKAGE = "opentelemetry-proto"
"""The package of the extra `otlp`."""
PATH = "/v1/traces"
ANSWER_S = 10.0
"""Time limit for one answer of a collector."""


def open_exporter(options: Options, log: Log, count: Count) -> TraceSink | None:
    """Return the exporter that the options call for; None if traces are not exported."""
    if not options.otlp_endpoint:
        return None
    try:
        from gateway.tracing.otlp.exporter import TraceExporter
    except ImportError:
        log.error(
            "otlp.endpoint is set, but traces are not exported: run "
            f"`{command_to_add(PACKAGE)}`, then `shoal restart`"
        )
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
    """Return the collector at `endpoint`. If the address has no path, OTLP's standard path `PATH`
    is added."""
    url = endpoint.rstrip("/")
    url = url if url.endswith(PATH) else url + PATH
    return HttpCollector(url, {**headers, "content-type": "application/x-protobuf"}, timeout_s)
