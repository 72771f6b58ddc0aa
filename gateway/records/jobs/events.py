"""Cuts the output of a run of a job into events, and decides how the run ended.

Pure. The bytes of a stream come in pieces of any size, so an event is returned once its last byte
has come. Comments are not events. An answer that is no stream has one event: its body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from gateway.dialects import sse
from gateway.records.jobs.job import Signal, error_text

LINES = "application/x-ndjson"
RETRIED = (429, 503)
"""HTTP statuses after which a request is worth a retry."""
_DONE = b"[DONE]"


class EventCutter:
    """Cuts an answer of a known content type into events as its bytes arrive."""

    def __init__(self, content_type: str) -> None:
        kind = content_type.partition(";")[0].strip()
        self._end = {sse.CONTENT_TYPE: b"\n\n", LINES: b"\n"}.get(kind)
        self._rest = b""

    @property
    def streams(self) -> bool:
        """Return whether the answer is a stream."""
        return self._end is not None

    def cut(self, piece: bytes) -> list[bytes]:
        """Add the next bytes of the answer. Return the events that they complete."""
        self._rest += piece
        if self._end is None or self._end not in self._rest:
            return []
        *whole, self._rest = self._rest.split(self._end)
        return [event + self._end for event in whole if event and not event.startswith(b":")]

    def close(self) -> bytes:
        """Return the whole body if the answer is not a stream; empty for a stream."""
        rest, self._rest = self._rest, b""
        return rest if self._end is None else b""


def event_payload(event: bytes) -> dict[str, Any]:
    """Return the JSON object in an event, a line or a body; an empty object if it contains none."""
    data = event
    if b"data: " in event[:256] and not event.startswith(b"{"):
        data = event.partition(b"data: ")[2]
    try:
        value = orjson.loads(data.strip())
    except orjson.JSONDecodeError:
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def is_end_mark(event: bytes) -> bool:
    """Return whether an event is only the mark that ends a stream."""
    return event.strip() == b"data: " + _DONE


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended. `retry`: the job may run again."""

    signal: Signal
    error: str | None = None
    retry: bool = False
    answer: bytes | None = None
    """The complete answer of a background job, taken from its last event; None for other jobs."""


def ending_of(
    status: int | None, content_type: str, last: bytes, *, stopped: bool, lost: bool = False
) -> Ending:
    """Return how a run of a job ended. `status` is the HTTP status, or None if the run sent no
    answer. `last` is the last event other than the mark that ends a stream. `stopped`: the owner
    requested the stop. `lost`: the model's runner ended before the run did."""
    ending = _ending_of(status, content_type, last, stopped=stopped)
    cut = lost and not stopped and ending.signal == "fail"
    return replace(ending, retry=True) if cut else ending


def _ending_of(status: int | None, content_type: str, last: bytes, *, stopped: bool) -> Ending:
    payload = event_payload(last)
    if status is None:
        return Ending("stop") if stopped else Ending("fail", error_text("internal_error", UNSAID))
    if status >= 300:
        retry = status in RETRIED and not stopped
        if stopped and status in (409, 499):
            return Ending("stop")
        return Ending("fail", _error_of(payload, status), retry)
    named = payload.get("response")
    if str(payload.get("type", "")).startswith("response.") and isinstance(named, dict):
        return _ending_of_named(cast(dict[str, Any], named), stopped=stopped)
    streams = EventCutter(content_type).streams
    if streams and payload.get("error") is not None:
        return Ending("fail", _error_of(payload, None))
    return Ending("stop" if stopped else "finish")


def _ending_of_named(answer: Mapping[str, Any], *, stopped: bool) -> Ending:
    whole = orjson.dumps(answer)
    match answer.get("status"):
        case "failed":
            error = cast(Mapping[str, Any], answer.get("error") or {})
            text = error_text(str(error.get("code", "")), str(error.get("message", "")))
            return Ending("fail", text, answer=whole)
        case "cancelled":
            return Ending("stop", answer=whole)
        case "completed" | "incomplete":
            return Ending("finish", answer=whole)
        case _:
            return Ending("stop") if stopped else Ending("fail", error_text("ended_early", UNSAID))


def _error_of(payload: Mapping[str, Any], status: int | None) -> str:
    """Convert an error in the format of any dialect to the error of a job."""
    error: Any = payload.get("error")
    if isinstance(error, dict):
        fields = cast(dict[str, Any], error)
        code = fields.get("code") or fields.get("type")
        return error_text(str(code or "failed"), str(fields.get("message", "")), status)
    return error_text("failed", str(error or payload.get("message") or ""), status)


UNSAID = "the request ended without an answer; see `shoal logs gateway`"
