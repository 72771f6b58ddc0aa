"""What a capture of a node holds, kept on its disk until it is fetched, and the archive of all."""

from gateway.cluster.captures.archive import (
    Captured,
    Missing,
    NodeCapture,
    NotReached,
    archive_of,
    capture_of,
    packed_capture,
)
from gateway.cluster.captures.kept import KeptCaptures
from gateway.cluster.captures.machine import Machine, Seen
from gateway.cluster.captures.secrets import Remover

__all__ = [
    "Captured",
    "KeptCaptures",
    "Machine",
    "Missing",
    "NodeCapture",
    "NotReached",
    "Remover",
    "Seen",
    "archive_of",
    "capture_of",
    "packed_capture",
]
