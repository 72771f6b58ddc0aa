"""Responses in the background: as they stand before they are made, and where nothing made them.

Pure. A response that is made is what its stream's last event has; what ended without such an event,
for it was stopped or cut before, gets one here, numbered behind those there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import orjson

from gateway.dialects import sse
from gateway.dialects.dialect import Background, Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.responses import shapes
from gateway.dialects.openai.responses.answers import Status


def in_background(parsed: Parsed, fields: Mapping[str, Any]) -> Parsed:
    """Return a body of these fields whose answer is made without its client; it is always made as a
    stream."""
    streamed = {**fields, "stream": True}
    shown = json_bytes(shapes.response_object(parsed, "queued"))
    return replace(parsed, background=Background(json_bytes(streamed), shown))


def as_it_stands(shown: bytes, state: str, error: Mapping[str, Any] | None) -> bytes:
    """Return a response whose job is in `state`, and failed with `error` (code and message); one
    that was made is what it is."""
    response = cast(dict[str, Any], orjson.loads(shown))
    if response["status"] != "queued" or state == "queued":
        return shown
    status: Status = "in_progress"
    if state == "cancelled":
        status = "cancelled"
    elif state in ("failed", "done"):
        status = "failed"
        message = "it ended early" if error is None else str(error["message"])
        response["error"] = {"code": "server_error", "message": message}
    return json_bytes({**response, "status": status})


def last_event(answer: bytes, number: int) -> bytes:
    """Return the last event of a response that nothing made, numbered `number`."""
    response = cast(dict[str, Any], orjson.loads(answer))
    kind = shapes.LAST_EVENTS[response["status"]]
    told = {"type": kind, "response": response, "sequence_number": number}
    return sse.named_frame(kind, json_bytes(told))


def is_made(shown: bytes) -> bool:
    """Return whether a response is what a stream's last event has."""
    return cast(dict[str, Any], orjson.loads(shown))["status"] != "queued"
