"""Talks to a collector of OpenTelemetry: traces as spans for other programs, over HTTP (OTLP).

What is sent is what is kept of a trace, and what the request asked for in numbers; no word of a
prompt or an answer. `exporter` alone acts, in a thread of its own.
"""

from gateway.requests.otlp.ended import EndedTrace, Outcome, TraceSink, open_exporter
from gateway.requests.otlp.spans import asked_attributes

__all__ = ["EndedTrace", "Outcome", "TraceSink", "asked_attributes", "open_exporter"]
