"""The data stored with a chat completion: its input messages, and its row in lists.

Pure. A message is stored as its client sent it, without null fields.
"""

from __future__ import annotations

from typing import Any

from gateway.dialects.dialect import ToKeep
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.bodies import ChatCompletionsBody
from gateway.dialects.openai.messages import MessageBody
from gateway.dialects.openai.stored.labels import labels_of


def to_keep_of(body: ChatCompletionsBody, answer_id: str, created_at_s: float) -> ToKeep | None:
    """Return the data to store with an answer; None if its body does not ask for that. Raises
    BadRequest for invalid labels."""
    if not body.store:
        return None
    return ToKeep(
        tuple(
            json_bytes(_object(message, f"{answer_id}-{index}"))
            for index, message in enumerate(body.messages)
        ),
        listed=json_bytes({"id": answer_id, "created": created_at_s, "model": body.model}),
        labels=labels_of({} if body.metadata is None else body.metadata),
    )


def _object(message: MessageBody, name: str) -> dict[str, Any]:
    fields = message.model_dump(mode="json", exclude_none=True)
    content: Any = fields.get("content")
    in_parts = not isinstance(message.content, str | None)
    return {
        "id": name,
        **fields,
        "content": None if in_parts else content,
        "content_parts": content if in_parts else None,
    }
