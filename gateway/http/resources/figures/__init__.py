"""Talks to clients: what the cluster does now and what memory it takes, once or once a second, and
what it did in the last hour; the log's events, and traces of requests."""

from gateway.http.resources.figures.events import LogEvents
from gateway.http.resources.figures.memory import LiveMemory, Memory
from gateway.http.resources.figures.snapshots import (
    MetricsHistory,
    MetricsSnapshot,
    MetricsStream,
    keep_history,
)
from gateway.http.resources.figures.traces import (
    ClusterTraces,
    RawTrace,
    TraceList,
    TraceResource,
    TraceStats,
    Tracing,
    TracingBody,
)

__all__ = [
    "ClusterTraces",
    "LiveMemory",
    "LogEvents",
    "Memory",
    "MetricsHistory",
    "MetricsSnapshot",
    "MetricsStream",
    "RawTrace",
    "TraceList",
    "TraceResource",
    "TraceStats",
    "Tracing",
    "TracingBody",
    "keep_history",
]
