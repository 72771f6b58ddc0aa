"""Talks to clients: what the cluster does now, once or once a second, and did in the last hour;
the log's events, and traces of requests."""

from gateway.http.resources.figures.events import LogEvents
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
    "LogEvents",
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
