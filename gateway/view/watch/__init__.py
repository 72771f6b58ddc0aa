"""Talks to the event loop and the disk: streams snapshots of the cluster, and events, to clients.
It also reads log files and the history file.

Pure modules compute a snapshot, a node's health and the ring of recent events.
"""

from gateway.view.watch.event_feed import EventBounds, EventFeed, follow_log
from gateway.view.watch.event_form import EventTold
from gateway.view.watch.event_ring import Entry, EventRing, LogPlace
from gateway.view.watch.feed import FeedBounds, SnapshotFeed
from gateway.view.watch.history import EVERY_S, HistoryFile, HistoryKeeper, HistoryPoint
from gateway.view.watch.load_timeline import LoadsTold, LoadTimeline
from gateway.view.watch.log_files import MOST_LINES, log_tail, logged_processes
from gateway.view.watch.memory import MemoryAnswer, memory_of
from gateway.view.watch.node_health import NodeHealth, grave_problems, node_health
from gateway.view.watch.queue import QueueRow, queue_of
from gateway.view.watch.readers import FeedFull
from gateway.view.watch.snapshot import ClusterSeen, SnapshotAnswer, snapshot_of

__all__ = [
    "EVERY_S",
    "MOST_LINES",
    "ClusterSeen",
    "Entry",
    "EventBounds",
    "EventFeed",
    "EventRing",
    "EventTold",
    "FeedBounds",
    "FeedFull",
    "HistoryFile",
    "HistoryKeeper",
    "HistoryPoint",
    "LoadTimeline",
    "LoadsTold",
    "LogPlace",
    "MemoryAnswer",
    "NodeHealth",
    "QueueRow",
    "SnapshotAnswer",
    "SnapshotFeed",
    "follow_log",
    "grave_problems",
    "log_tail",
    "logged_processes",
    "memory_of",
    "node_health",
    "queue_of",
    "snapshot_of",
]
