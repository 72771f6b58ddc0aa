"""Calls about stored traces. Pure. `request` is the traced request."""

from __future__ import annotations

from pydantic import Field

from bus.wire.ids import RequestId
from bus.wire.messages.wire import Message


class FindTrace(Message):
    """Find the trace of a request."""

    request: RequestId


class TraceFound(Message):
    """The trace as JSON; None if the node has no trace of the request."""

    trace: bytes | None = None


class RemoveTrace(Message):
    """Delete the trace of a request."""

    request: RequestId


class ListTraces(Message):
    """List the last traces of `model` (None: of all models), at most `limit`."""

    limit: int = Field(ge=0)
    model: str | None = None


class TracesFound(Message):
    """The listed traces of one node, latest first: the JSON list that its own HTTP API returns."""

    traces: bytes = b"[]"
