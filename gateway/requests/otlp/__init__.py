"""Talks to an OpenTelemetry collector: sends traces as spans over HTTP (OTLP).

The spans contain the stored trace and the numeric settings of the request, and no text of a prompt
or an answer. Only the module `exporter` does I/O, in a separate thread.
"""

from gateway.requests.otlp.ended import EndedTrace, Outcome, TraceSink, open_exporter
from gateway.requests.otlp.spans import asked_attributes

__all__ = ["EndedTrace", "Outcome", "TraceSink", "asked_attributes", "open_exporter"]
