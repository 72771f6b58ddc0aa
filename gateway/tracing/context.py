"""Decides which trace a request belongs to, and the ids of its spans (W3C trace context).

Pure. A client that records a trace sends the header `traceparent`. A request without this header
begins a new trace. The ids are derived from the request's own unique id. The span of the whole
request has one id; the spans below it get the numbers that follow this id.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

TRACEPARENT, TRACERESPONSE = "traceparent", "traceresponse"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED = 1
_SPAN_IDS = 1 << 64


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The client's span that contains a request, by its ids in hex digits. `sampled`: the client
    records this span."""

    trace_id: str
    span_id: str
    sampled: bool


@dataclass(frozen=True, slots=True)
class TracePlace:
    """The span of a whole request, by ids in hex digits; without a parent `parent_id` is ""."""

    trace_id: str
    span_id: str
    parent_id: str = ""

    @property
    def header(self) -> str:
        """Return the value of the response header `traceresponse`, in the form of `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-01"


def parent_of(header: str | None) -> TraceParent | None:
    """Return the span that a `traceparent` header names. None if the header is missing or
    malformed; the W3C recommendation demands that malformed headers are ignored."""
    match = _FORM.fullmatch(header or "")
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if (
        version == "ff"
        or (version == "00" and rest)
        or not (int(trace_id, 16) and int(span_id, 16))
    ):
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def place_of(request: str, answer: str, parent: TraceParent | None) -> TracePlace:
    """Return the trace and span ids of a request. Requests with the same `answer` id share a trace.
    If there is a `parent`, that trace is the parent's."""
    span_id = _digits(f"{request} 0", 16)
    if parent is None:
        return TracePlace(_digits(answer, 32), span_id)
    return TracePlace(parent.trace_id, span_id, parent.span_id)


def span_ids_below(span_id: str) -> Iterator[str]:
    """Yield ids for the spans below a whole request's span, counting up from its id."""
    first = int(span_id, 16)
    return (f"{(first + number) % _SPAN_IDS:016x}" for number in itertools.count(1))


def _digits(text: str, count: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:count]
