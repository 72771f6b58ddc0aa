"""Talks to clients: what the cluster does now, once or once a second, and the log's
events."""

from gateway.http.resources.figures.events import LogEvents
from gateway.http.resources.figures.snapshots import MetricsSnapshot, MetricsStream

__all__ = ["LogEvents", "MetricsSnapshot", "MetricsStream"]
