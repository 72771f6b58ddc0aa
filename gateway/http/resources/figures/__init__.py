"""Talks to clients: what the cluster does now and what memory it takes, once or once a second, and
what it did in the last hour; the log's events, traces of requests, and how fast one was."""

from gateway.http.resources.figures.bench import BenchResource
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
    TraceRemoval,
    TraceResource,
    TracesRemovedBody,
    TraceStats,
    TraceTimes,
    Tracing,
    TracingBody,
)

__all__ = [
    "BenchResource",
    "ClusterTraces",
    "LiveMemory",
    "LogEvents",
    "Memory",
    "MetricsHistory",
    "MetricsSnapshot",
    "MetricsStream",
    "RawTrace",
    "TraceList",
    "TraceRemoval",
    "TraceResource",
    "TraceStats",
    "TraceTimes",
    "TracesRemovedBody",
    "Tracing",
    "TracingBody",
    "keep_history",
]
