"""Talks to clients about measurements: the cluster's metrics and memory, the roles of its nodes,
the events of its log, traces of requests, and the speed of one request."""

from gateway.http.resources.figures.bench import BenchResource
from gateway.http.resources.figures.events import (
    EventsAnswer,
    LogEvents,
)
from gateway.http.resources.figures.fleet import Fleet, FleetAnswer
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
    "Fleet",
    "FleetAnswer",
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
