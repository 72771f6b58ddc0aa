"""Items as they are kept with an answer, and how they are told when asked for.

Pure. Every kept item has an id, the client's own or one made of the request's; an item is kept as
one JSON object, so that what is told is what the next request is read from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from bus.wire.ids import RequestId
from gateway.dialects.body import bad_field
from gateway.dialects.dialect import KeptAnswer
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.responses import items
from gateway.dialects.openai.responses.answers import RemovedResponse
from gateway.dialects.openai.shapes import list_object, page_of

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_ITEM_ID = re.compile(r"[a-z]+_(.{1,120})-(?:in)?[0-9]{1,6}")
"""An item's id as it is made here: what it is, the request that made it, its number."""


def items_of(asked: str | Sequence[items.AnyItem] | None) -> tuple[items.AnyItem, ...]:
    """Return a body's input as items; a text is the user's turn."""
    if asked is None:
        return ()
    if isinstance(asked, str):
        return (items.ResponsesMessageBody(role="user", content=asked),)
    return tuple(asked)


def kept_items(found: Sequence[items.AnyItem], request: RequestId) -> tuple[bytes, ...]:
    """Return items as they are kept, without those that are skipped; `request` is the one that
    brought them."""
    return tuple(
        json_bytes(_object(item, index, request))
        for index, item in enumerate(found)
        if not isinstance(item, items.ResponsesForeignItemBody)
    )


def references_of(
    found: Sequence[items.AnyItem], field: str = "input"
) -> tuple[tuple[str, RequestId], ...]:
    """Return the ids of items that are named alone, and the requests that made them. BadRequest
    for an id that none can have."""
    named: dict[str, RequestId] = {}
    for index, item in enumerate(found):
        if isinstance(item, items.ResponsesReferenceBody):
            match = _ITEM_ID.fullmatch(item.id)
            if match is None:
                text = f"no item here has the id '{item.id[:80]}'; send the item itself"
                raise bad_field(f"{field}[{index}]", text)
            named[item.id] = RequestId(match[1])
    return tuple(named.items())


def item_named(kept: KeptAnswer, item_id: str) -> bytes | None:
    """Return the item of that id, of those that an answer was made from or has; None without it."""
    for item in (*output_of(kept), *kept.items):
        if orjson.loads(item)["id"] == item_id:
            return item
    return None


def resolved(kept: Sequence[bytes], named: Mapping[str, bytes]) -> tuple[bytes, ...]:
    """Return items with those in the place of the ones that are named alone; the others are as
    they were."""
    if not named:
        return tuple(kept)
    made: list[bytes] = []
    for item in kept:
        found = orjson.loads(item)
        made.append(named[found["id"]] if found["type"] == "item_reference" else item)
    return tuple(made)


def read_items(kept: Sequence[bytes]) -> list[Any]:
    """Return kept items as plain objects, for a body's model to read."""
    return [orjson.loads(item) for item in kept]


def output_of(kept: KeptAnswer) -> list[bytes]:
    """Return the items of a kept answer's own output."""
    answer = cast(dict[str, Any], orjson.loads(kept.answer))
    return [json_bytes(item) for item in answer["output"]]


def render_items(kept: KeptAnswer, query: Mapping[str, str]) -> bytes:
    """Return the items that an answer was made from, as `query` has `limit`, `order` and `after`.

    BadRequest naming what of these cannot be honoured.
    """
    return json_bytes(list_object(page_of(read_items(kept.items), query, order="desc")))


def render_deleted(answer_id: str) -> bytes:
    """Return what is told of an answer that is kept no longer."""
    removed: RemovedResponse = {"id": answer_id, "object": "response", "deleted": True}
    return json_bytes(removed)


def _object(item: items.KeptItem, index: int, request: RequestId) -> dict[str, Any]:
    kind = item.type or "item_reference"
    named = {"id": item.id or f"{_PREFIXES.get(kind, 'rs')}_{request}-in{index}", "type": kind}
    match item:
        case items.ResponsesMessageBody():
            return {**named, "role": item.role, "status": "completed", "content": _parts(item)}
        case items.ResponsesCallBody():
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            return {**named, **call, "status": "completed"}
        case items.ResponsesCallOutputBody() | items.ResponsesCustomOutputBody():
            output = item.output
            said = output if isinstance(output, str) else [_part(part) for part in output]
            return {**named, "call_id": item.call_id, "output": said, "status": "completed"}
        case items.ResponsesCustomCallBody():
            return {**named, "call_id": item.call_id, "name": item.name, "input": item.input}
        case items.ResponsesReasoningBody():
            packed = item.encrypted_content
            return {
                **named,
                "summary": [piece.model_dump() for piece in item.summary or ()],
                "content": [piece.model_dump() for piece in item.content or ()],
                **({} if packed is None else {"encrypted_content": packed}),
            }
        case items.ResponsesReferenceBody():
            return named


def _parts(item: items.ResponsesMessageBody) -> list[dict[str, Any]]:
    if isinstance(item.content, str):
        text = items.ResponsesTextPartBody(
            type="output_text" if item.role == "assistant" else "input_text", text=item.content
        )
        return [_part(text)]
    return [_part(part) for part in item.content]


def _part(
    part: items.ResponsesTextPartBody
    | items.ResponsesRefusalPartBody
    | items.ResponsesMediaPartBody,
) -> dict[str, Any]:
    """Return a part without what has no meaning; an answer's text has its lists, empty."""
    match part:
        case items.ResponsesTextPartBody(type="output_text"):
            return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
        case items.ResponsesTextPartBody():
            return {"type": part.type, "text": part.text}
        case items.ResponsesRefusalPartBody():
            return {"type": "refusal", "refusal": part.refusal}
        case items.ResponsesMediaPartBody():
            return {"type": part.type}
