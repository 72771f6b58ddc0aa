"""Talks to the system and the disk: captures of nodes, which are archives for diagnosis.

This package collects the capture of this node, stores it until a client fetches it, and combines
the captures of all nodes in one archive.
"""

from gateway.control.captures.archive import (
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
from gateway.control.captures.kept import KeptCaptures
from gateway.control.captures.machine import (
    GATEWAY,
    Machine,
    SeenProcess,
    memory_of,
    remover_of,
    state_of,
)
from gateway.control.captures.secrets import Remover

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
