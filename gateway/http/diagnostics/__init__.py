"""Talks to clients who diagnose nodes: status documents, recent steps of runners, stacks, profiles,
captures (one archive with all of this), and restarts of processes.
"""

from gateway.http.diagnostics.capture import (
    CaptureBody,
    CaptureOfNode,
    ClusterCapture,
    answer_others,
)
from gateway.http.diagnostics.cluster import ClusterDiagnostics, PeerDiagnostics
from gateway.http.diagnostics.node import (
    CODES,
    ROOT,
    DiagnosticsTiming,
    NodeDiagnostics,
    ProcessLog,
)
from gateway.http.diagnostics.processes import (
    MAX_BODY_BYTES,
    ProcessProfile,
    ProcessStacks,
    ProfileOrder,
)
from gateway.http.diagnostics.restart import Restart
from gateway.http.diagnostics.runners import RowCancelBody, RunnerCancel
from gateway.http.diagnostics.timeline import ClusterTimeline

__all__ = [
    "CODES",
    "MAX_BODY_BYTES",
    "ROOT",
    "CaptureBody",
    "CaptureOfNode",
    "ClusterCapture",
    "ClusterDiagnostics",
    "ClusterTimeline",
    "DiagnosticsTiming",
    "NodeDiagnostics",
    "PeerDiagnostics",
    "ProcessLog",
    "ProcessProfile",
    "ProcessStacks",
    "ProfileOrder",
    "Restart",
    "RowCancelBody",
    "RunnerCancel",
    "answer_others",
]
