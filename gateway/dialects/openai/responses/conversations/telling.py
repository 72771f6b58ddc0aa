"""Conversations and their items, as they are told.

Pure. Of an item is told what it has, but log-probabilities and packed thinking only where the query
asks for them; all else that may be asked for is in no item here.
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
"""Stands before a request's id in the id of a conversation."""
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
"""What `include` may have; only the first two are in items here."""


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
    """Return what is told of a conversation that is kept no longer."""
    removed: RemovedConversation = {
        "id": conversation_id,
        "object": "conversation.deleted",
        "deleted": True,
    }
    return json_bytes(removed)


def render_conversation_items(
    items: Sequence[bytes], has_more: bool, includes: Collection[str]
) -> bytes:
    """Return a list of items."""
    return json_bytes(list_object(Page([_told(one, includes) for one in items], has_more)))


def render_conversation_item(item: bytes, includes: Collection[str]) -> bytes:
    """Return one item."""
    return json_bytes(_told(item, includes))


def _told(item: bytes, includes: Collection[str]) -> dict[str, Any]:
    told = cast(dict[str, Any], orjson.loads(item))
    if told["type"] == "reasoning":
        thought = "".join(piece["text"] for piece in told.get("content") or ())
        packed = told.pop("encrypted_content", None) or packed_thought(thought)
        return {**told, "encrypted_content": packed} if ENCRYPTED in includes else told
    if told["type"] == "message" and LOGPROBS not in includes:
        told["content"] = [_plain(part) for part in told["content"]]
    return told


def _plain(part: dict[str, Any]) -> dict[str, Any]:
    return {**part, "logprobs": []} if "logprobs" in part else part
