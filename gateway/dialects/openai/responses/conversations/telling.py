"""Renders conversations and their items.

Pure. An item has log-probabilities and encoded thinking only if the query includes them. shoal has
none of the other parts that a query may include.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

import orjson

from bus.wire.ids import RequestId
from gateway.dialects.api_table import Page
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.responses.answers import RemovedConversation
from gateway.dialects.openai.responses.shapes import ENCRYPTED, packed_thought
from gateway.dialects.openai.shapes import list_object

CONVERSATION_PREFIX = "conv_"
"""The prefix of a conversation's id; the id of a request follows."""
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (
    LOGPROBS,
    ENCRYPTED,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""Values that `include` may have. Items of shoal have only the first two of these parts."""


def render_conversation(request: RequestId, created_at_s: float, labels: bytes) -> bytes:
    """Return a conversation without its items."""
    return json_bytes(
        {
            "id": f"{CONVERSATION_PREFIX}{request}",
            "object": "conversation",
            "created_at": int(created_at_s),
            "metadata": orjson.Fragment(labels or b"{}"),
        }
    )


def render_conversation_removed(conversation_id: str) -> bytes:
    """Return the answer to the deletion of a conversation."""
    removed: RemovedConversation = {
        "id": conversation_id,
        "object": "conversation.deleted",
        "deleted": True,
    }
    return json_bytes(removed)


def render_conversation_items(
    items: Sequence[bytes], has_more: bool, includes: Collection[str]
) -> bytes:
    """Return a page of items as OpenAI's list object."""
    return json_bytes(list_object(Page([_item_object(item, includes) for item in items], has_more)))


def render_conversation_item(item: bytes, includes: Collection[str]) -> bytes:
    """Return one item as JSON, with the parts in `includes`."""
    return json_bytes(_item_object(item, includes))


def _item_object(item: bytes, includes: Collection[str]) -> dict[str, Any]:
    fields = cast(dict[str, Any], orjson.loads(item))
    if fields["type"] == "reasoning":
        thought = "".join(piece["text"] for piece in fields.get("content") or ())
        packed = fields.pop("encrypted_content", None) or packed_thought(thought)
        return {**fields, "encrypted_content": packed} if ENCRYPTED in includes else fields
    if fields["type"] == "message" and LOGPROBS not in includes:
        fields["content"] = [_plain(part) for part in fields["content"]]
    return fields


def _plain(part: dict[str, Any]) -> dict[str, Any]:
    return {**part, "logprobs": []} if "logprobs" in part else part
