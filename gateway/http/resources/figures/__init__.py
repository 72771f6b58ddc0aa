"""Talks to clients: what the cluster does now, once or once a second, the log's events, and
traces of requests."""

from gateway.http.resources.figures.events import LogEvents
from gateway.http.resources.figures.snapshots import MetricsSnapshot, MetricsStream
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
    "MetricsSnapshot",
    "MetricsStream",
    "RawTrace",
    "TraceList",
    "TraceResource",
    "TraceStats",
    "Tracing",
    "TracingBody",
]
