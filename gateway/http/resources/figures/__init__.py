"""Talks to clients: what the cluster does now and what memory it takes, once or once a second, and
what it did in the last hour; the log's events, traces of requests, and how fast one was."""

from gateway.http.resources.figures.bench import BenchResource
from gateway.http.resources.figures.events import (
    EventsAnswer,
    LogEvents,
)
from gateway.http.resources.figures.memory import LiveMemory, Memory
from gateway.http.resources.figures.snapshots import (
    HistoryAnswer,
    MetricsHistory,
    MetricsSnapshot,
    MetricsStream,
    keep_history,
)
from gateway.http.resources.figures.traces import (
    ChromeTrace,
    ClusterTraces,
    ClusterTracesAnswer,
    RawTrace,
    TraceList,
    TraceRemoval,
    TraceRemovedAnswer,
    TraceResource,
    TracesAnswer,
    TracesRemovedAnswer,
    TracesRemovedBody,
    TraceStats,
    TraceStatsAnswer,
    TraceTimes,
    TraceTimesAnswer,
    Tracing,
    TracingAnswer,
    TracingBody,
    TracingSetAnswer,
)

__all__ = [
    "BenchResource",
    "ChromeTrace",
    "ClusterTraces",
    "ClusterTracesAnswer",
    "EventsAnswer",
    "HistoryAnswer",
    "LiveMemory",
    "LogEvents",
    "Memory",
    "MetricsHistory",
    "MetricsSnapshot",
    "MetricsStream",
    "RawTrace",
    "TraceList",
    "TraceRemoval",
    "TraceRemovedAnswer",
    "TraceResource",
    "TraceStats",
    "TraceStatsAnswer",
    "TraceTimes",
    "TraceTimesAnswer",
    "TracesAnswer",
    "TracesRemovedAnswer",
    "TracesRemovedBody",
    "Tracing",
    "TracingAnswer",
    "TracingBody",
    "TracingSetAnswer",
    "keep_history",
]
