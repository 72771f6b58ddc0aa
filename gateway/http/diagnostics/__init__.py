"""Talks to clients who look into nodes: what a node and the cluster are doing, stacks, profiles,
and captures of all of it in one file.
"""

from gateway.http.diagnostics.capture import CaptureBody, ClusterCapture, answer_others
from gateway.http.diagnostics.cluster import ClusterDiagnostics
from gateway.http.diagnostics.node import (
    CODES,
    MAX_BODY_BYTES,
    ROOT,
    DiagnosticsTiming,
    NodeDiagnostics,
    ProcessLog,
    ProcessProfile,
    ProcessStacks,
    ProfileOrder,
)

__all__ = [
    "CODES",
    "MAX_BODY_BYTES",
    "ROOT",
    "CaptureBody",
    "ClusterCapture",
    "ClusterDiagnostics",
    "DiagnosticsTiming",
    "NodeDiagnostics",
    "ProcessLog",
    "ProcessProfile",
    "ProcessStacks",
    "ProfileOrder",
    "answer_others",
]
