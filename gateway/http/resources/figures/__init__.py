"""Talks to clients: what the cluster does now, once or once a second."""

from gateway.http.resources.figures.snapshots import MetricsSnapshot, MetricsStream

__all__ = ["MetricsSnapshot", "MetricsStream"]
