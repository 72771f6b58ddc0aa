"""Types of the bodies that OpenAI's clients send about conversations.

Pure. This module has only types and counts; the items are those of a response's input.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gateway.dialects.body import Closed, honoured
from gateway.dialects.openai.responses.items import ResponsesItem

MOST_ADDED = 20
"""The maximum number of items that one body may add."""


class ConversationBody(Closed):
    """The body of `POST /v1/conversations`."""

    items: Annotated[list[ResponsesItem], Field(max_length=MOST_ADDED, fail_fast=True)] | None = (
        honoured("the first items of the conversation")
    )
    metadata: dict[str, Any] | None = honoured("labels")


class ConversationItemsBody(Closed):
    """The body of `POST /v1/conversations/{id}/items`."""

    items: Annotated[
        list[ResponsesItem], Field(min_length=1, max_length=MOST_ADDED, fail_fast=True)
    ]
