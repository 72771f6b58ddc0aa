"""Talks to the loop and its readers: what the cluster does, once a second, for all who watch.

How a snapshot is made of state, readings and counts, and how a node is, is pure.
"""

from gateway.cluster.watch.feed import FeedBounds, FeedFull, SnapshotFeed
from gateway.cluster.watch.load_timeline import LoadTimeline
from gateway.cluster.watch.node_health import node_health
from gateway.cluster.watch.queue import queue_of
from gateway.cluster.watch.snapshot import ClusterSeen, snapshot_of

__all__ = [
    "ClusterSeen",
    "FeedBounds",
    "FeedFull",
    "LoadTimeline",
    "SnapshotFeed",
    "node_health",
    "queue_of",
    "snapshot_of",
]
