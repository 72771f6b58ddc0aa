"""Talks to clients who look into nodes: what a node and the cluster are doing, stacks, profiles,
captures of all of it in one file, and traces of requests.
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
from gateway.http.diagnostics.traces import (
    ClusterTraces,
    RawTrace,
    TraceList,
    TraceResource,
    TraceStats,
    Tracing,
    TracingBody,
)

__all__ = [
    "CODES",
    "MAX_BODY_BYTES",
    "ROOT",
    "CaptureBody",
    "ClusterCapture",
    "ClusterDiagnostics",
    "ClusterTraces",
    "DiagnosticsTiming",
    "NodeDiagnostics",
    "ProcessLog",
    "ProcessProfile",
    "ProcessStacks",
    "ProfileOrder",
    "RawTrace",
    "TraceList",
    "TraceResource",
    "TraceStats",
    "Tracing",
    "TracingBody",
    "answer_others",
]
