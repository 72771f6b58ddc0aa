"""Talks to the system and the disk: gathers the capture of a node, stores it until it is fetched,
and makes the archive of all nodes."""

from gateway.cluster.captures.archive import (
    Captured,
    Missing,
    NodeCapture,
    NotReached,
    archive_of,
    capture_of,
    file_name,
    json_text,
    packed_capture,
)
from gateway.cluster.captures.kept import KeptCaptures
from gateway.cluster.captures.machine import (
    GATEWAY,
    Machine,
    SeenProcess,
    memory_of,
    remover_of,
    state_of,
)
from gateway.cluster.captures.secrets import Remover

__all__ = [
    "GATEWAY",
    "Captured",
    "KeptCaptures",
    "Machine",
    "Missing",
    "NodeCapture",
    "NotReached",
    "Remover",
    "SeenProcess",
    "archive_of",
    "capture_of",
    "file_name",
    "json_text",
    "memory_of",
    "packed_capture",
    "remover_of",
    "state_of",
]
