"""Talks to an OpenTelemetry collector: sends traces as spans over HTTP (OTLP).

The spans contain the stored trace and the numeric settings of the request, and no text of a prompt
or an answer. Only the module `exporter` does I/O, in a separate thread.
"""

from gateway.tracing.otlp.ended import EndedTrace, Outcome, TraceSink
from gateway.tracing.otlp.opening import open_exporter
from gateway.tracing.otlp.spans import asked_attributes

__all__ = ["EndedTrace", "Outcome", "TraceSink", "asked_attributes", "open_exporter"]
