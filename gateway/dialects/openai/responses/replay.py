"""Renders a stored response as a stream again, with the same items. Each text is one delta.

Pure. Events have the order and names of the original stream (`render`), but their own numbers, from
0 without gaps. Only events after the number `starting_after` are rendered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import orjson

from bus.wire.errors import BadRequest
from gateway.dialects import sse
from gateway.dialects.dialect import KeptAnswer
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.responses import shapes

_Event = tuple[str, dict[str, Any]]
_UNENDED: Mapping[str, Any] = {
    "status": "in_progress",
    "completed_at": None,
    "incomplete_details": None,
    "output": [],
    "error": None,
    "usage": None,
}
_NO_SCORES: tuple[Any, ...] = ()
_TEXTS = {"message": "response.output_text", "reasoning": "response.reasoning_text"}
_ARGUMENTS = "response.function_call_arguments"
_INPUT = "response.custom_tool_call_input"
_SUMMARY = "response.reasoning_summary"


def replayed(stored: KeptAnswer, query: Mapping[str, str]) -> bytes:
    """Return the events of a stored response; `query` may have `starting_after`. Raises
    BadRequest."""
    after = query.get("starting_after", "-1")
    if after != "-1" and not (after.isascii() and after.isdigit() and len(after) < 10):
        text = "starting_after must be the number of an event"
        raise BadRequest(text, field="starting_after")
    events = enumerate(_events(cast(dict[str, Any], orjson.loads(stored.answer))))
    return b"".join(
        sse.named_frame(kind, json_bytes({"type": kind, **fields, "sequence_number": number}))
        for number, (kind, fields) in events
        if number > int(after)
    )


def _events(response: dict[str, Any]) -> Iterator[_Event]:
    empty = {**response, **_UNENDED}
    yield "response.created", {"response": empty}
    yield "response.in_progress", {"response": empty}
    for index, item in enumerate(response["output"]):
        yield from _events_of(item, index)
    yield shapes.LAST_EVENTS[response["status"]], {"response": response}


def _events_of(item: dict[str, Any], index: int) -> Iterator[_Event]:
    place = {"item_id": item["id"], "output_index": index}
    at_start: dict[str, Any] = {
        "arguments": "",
        "input": "",
        "content": [],
        "summary": [],
        "status": "in_progress",
    }
    added: dict[str, Any] = {name: at_start.get(name, value) for name, value in item.items()}
    added.pop("encrypted_content", None)
    yield "response.output_item.added", {"output_index": index, "item": added}
    if item["type"] == "function_call":
        text = item["arguments"]
        if text:
            yield f"{_ARGUMENTS}.delta", {**place, "delta": text}
        yield f"{_ARGUMENTS}.done", {**place, "name": item["name"], "arguments": text}
    elif item["type"] == "custom_tool_call":
        if text := item["input"]:
            yield f"{_INPUT}.delta", {**place, "delta": text}
        yield f"{_INPUT}.done", {**place, "input": text}
    else:
        [part] = item["content"]
        yield from _part(_TEXTS[item["type"]], place, part, [*item.get("summary", ())])
    yield "response.output_item.done", {"output_index": index, "item": item}


def _part(
    kind: str, place: dict[str, Any], part: dict[str, Any], summary: list[dict[str, Any]]
) -> Iterator[_Event]:
    """Yield the events of a part with text or thinking, and the events of its summary."""
    here, beside = {**place, "content_index": 0}, {**place, "summary_index": 0}
    scores: dict[str, Any] = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
    empty: dict[str, Any] = {**part, "text": "", **dict.fromkeys(scores, _NO_SCORES)}
    yield "response.content_part.added", {**here, "part": empty}
    for piece in summary:
        yield f"{_SUMMARY}_part.added", {**beside, "part": {**piece, "text": ""}}
    yield f"{kind}.delta", {**here, "delta": part["text"], **scores}
    for piece in summary:
        yield f"{_SUMMARY}_text.delta", {**beside, "delta": piece["text"]}
    yield f"{kind}.done", {**here, "text": part["text"], **scores}
    yield "response.content_part.done", {**here, "part": part}
    for piece in summary:
        yield f"{_SUMMARY}_text.done", {**beside, "text": piece["text"]}
        yield f"{_SUMMARY}_part.done", {**beside, "part": piece}
