"""Talks to an OpenTelemetry collector: sends traces as spans over HTTP (OTLP).

It sends the kept trace and the request's numeric settings, never a word of a prompt or an answer.
Only `exporter` acts, in a thread of its own.
"""

from gateway.requests.otlp.ended import EndedTrace, Outcome, TraceSink, open_exporter
from gateway.requests.otlp.spans import asked_attributes

__all__ = ["EndedTrace", "Outcome", "TraceSink", "asked_attributes", "open_exporter"]
