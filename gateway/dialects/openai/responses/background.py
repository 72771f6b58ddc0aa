"""Responses made in the background: their state while they are made, and the last event of a
response that failed.

Pure. A complete response equals the response in the last event of its stream. If a background job
was cancelled or interrupted before that event, this module makes the last event. Its number follows
the numbers of the events that the job sent.
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
    """Return a background request for a body with these fields. Its answer is always generated as a
    stream."""
    streamed = {**fields, "stream": True}
    shown = json_bytes(shapes.response_object(parsed, "queued"))
    return replace(parsed, background=Background(json_bytes(streamed), shown))


def as_it_stands(shown: bytes, state: str, error: Mapping[str, Any] | None) -> bytes:
    """Return a response with the state of its background job. If the job failed, `error` has the
    code and the message. A complete response is returned unchanged."""
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
    """Return the last event, with the number `number`, of a response that was never completed."""
    response = cast(dict[str, Any], orjson.loads(answer))
    kind = shapes.LAST_EVENTS[response["status"]]
    event = {"type": kind, "response": response, "sequence_number": number}
    return sse.named_frame(kind, json_bytes(event))


def is_made(shown: bytes) -> bool:
    """Return whether a response is complete."""
    return cast(dict[str, Any], orjson.loads(shown))["status"] != "queued"
