"""Items as they are stored with an answer, and how they are rendered.

Pure. Every stored item has an id, from the client or made from the request's id. An item is stored
as one JSON object. Clients get that object, and the next request is parsed from it.
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
"""An item's id as shoal makes it: its kind, the request that made it, its number."""


def items_of(input_items: str | Sequence[items.AnyItem] | None) -> tuple[items.AnyItem, ...]:
    """Return a body's input as items; if the input is a text, it becomes the user's turn."""
    if input_items is None:
        return ()
    if isinstance(input_items, str):
        return (items.ResponsesMessageBody(role="user", content=input_items),)
    return tuple(input_items)


def kept_items(input_items: Sequence[items.AnyItem], request: RequestId) -> tuple[bytes, ...]:
    """Return the items in the form in which they are stored, without items that the model does not
    get. `request` is the request that contained the items."""
    return tuple(
        json_bytes(_object(item, index, request))
        for index, item in enumerate(input_items)
        if not isinstance(item, items.ResponsesForeignItemBody)
    )


def references_of(
    input_items: Sequence[items.AnyItem], field: str = "input"
) -> tuple[tuple[str, RequestId], ...]:
    """Return the ids of the items that the input refers to, each with the request that made the
    item. Raises BadRequest for an invalid id."""
    references: dict[str, RequestId] = {}
    for index, item in enumerate(input_items):
        if isinstance(item, items.ResponsesReferenceBody):
            match = _ITEM_ID.fullmatch(item.id)
            if match is None:
                text = f"no stored item has the id '{item.id[:80]}'; send the item itself"
                raise bad_field(f"{field}[{index}]", text)
            references[item.id] = RequestId(match[1])
    return tuple(references.items())


def item_named(stored: KeptAnswer, item_id: str) -> bytes | None:
    """Return the item with this id from an answer's output or input; None if neither has it."""
    for item in (*output_of(stored), *stored.items):
        if orjson.loads(item)["id"] == item_id:
            return item
    return None


def resolved(stored: Sequence[bytes], named: Mapping[str, bytes]) -> tuple[bytes, ...]:
    """Return stored items. A reference is replaced by the item of that id in `named`; other items
    are unchanged."""
    if not named:
        return tuple(stored)
    resolved_items: list[bytes] = []
    for item in stored:
        fields = orjson.loads(item)
        is_reference = fields["type"] == "item_reference"
        resolved_items.append(named[fields["id"]] if is_reference else item)
    return tuple(resolved_items)


def read_items(stored: Sequence[bytes]) -> list[Any]:
    """Return stored items as plain objects, for a body's model to validate."""
    return [orjson.loads(item) for item in stored]


def output_of(stored: KeptAnswer) -> list[bytes]:
    """Return the output items of a stored answer."""
    answer = cast(dict[str, Any], orjson.loads(stored.answer))
    return [json_bytes(item) for item in answer["output"]]


def render_items(stored: KeptAnswer, query: Mapping[str, str]) -> bytes:
    """Return a page of an answer's input items; `query` may have `limit`, `order` and `after`.

    Raises BadRequest naming an invalid field.
    """
    return json_bytes(list_object(page_of(read_items(stored.items), query, order="desc")))


def render_deleted(answer_id: str) -> bytes:
    """Return the answer to the deletion of a stored response."""
    removed: RemovedResponse = {"id": answer_id, "object": "response", "deleted": True}
    return json_bytes(removed)


def _object(item: items.KeptItem, index: int, request: RequestId) -> dict[str, Any]:
    kind = item.type or "item_reference"
    head = {"id": item.id or f"{_PREFIXES.get(kind, 'rs')}_{request}-in{index}", "type": kind}
    match item:
        case items.ResponsesMessageBody():
            return {**head, "role": item.role, "status": "completed", "content": _parts(item)}
        case items.ResponsesCallBody():
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            return {**head, **call, "status": "completed"}
        case items.ResponsesCallOutputBody() | items.ResponsesCustomOutputBody():
            output = item.output
            content = output if isinstance(output, str) else [_part(part) for part in output]
            return {**head, "call_id": item.call_id, "output": content, "status": "completed"}
        case items.ResponsesCustomCallBody():
            return {**head, "call_id": item.call_id, "name": item.name, "input": item.input}
        case items.ResponsesReasoningBody():
            packed = item.encrypted_content
            return {
                **head,
                "summary": [piece.model_dump() for piece in item.summary or ()],
                "content": [piece.model_dump() for piece in item.content or ()],
                **({} if packed is None else {"encrypted_content": packed}),
            }
        case items.ResponsesReferenceBody():
            return head


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
    """Return a part of an item without fields that mean nothing. If it is an answer's text, it gets
    empty lists of annotations and log-probabilities."""
    match part:
        case items.ResponsesTextPartBody(type="output_text"):
            return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
        case items.ResponsesTextPartBody():
            return {"type": part.type, "text": part.text}
        case items.ResponsesRefusalPartBody():
            return {"type": "refusal", "refusal": part.refusal}
        case items.ResponsesMediaPartBody():
            return {"type": part.type}
