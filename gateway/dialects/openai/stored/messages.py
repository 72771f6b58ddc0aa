"""What is kept with a chat completion: the messages that it answers, and what it is listed by.

Pure. A message is kept as its client sent it, without what is null.
"""

from __future__ import annotations

from typing import Any

from gateway.dialects.dialect import ToKeep
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.bodies import ChatCompletionsBody
from gateway.dialects.openai.messages import MessageBody
from gateway.dialects.openai.stored.labels import labels_of


def to_keep_of(asked: ChatCompletionsBody, answer_id: str, created_at_s: float) -> ToKeep | None:
    """Return what is to be kept with an answer; None where its body does not ask for that.
    BadRequest for labels that are none."""
    if not asked.store:
        return None
    return ToKeep(
        tuple(
            json_bytes(_object(message, f"{answer_id}-{index}"))
            for index, message in enumerate(asked.messages)
        ),
        listed=json_bytes({"id": answer_id, "created": created_at_s, "model": asked.model}),
        labels=labels_of({} if asked.metadata is None else asked.metadata),
    )


def _object(message: MessageBody, name: str) -> dict[str, Any]:
    said = message.model_dump(mode="json", exclude_none=True)
    content: Any = said.get("content")
    in_parts = not isinstance(message.content, str | None)
    return {
        "id": name,
        **said,
        "content": None if in_parts else content,
        "content_parts": content if in_parts else None,
    }
