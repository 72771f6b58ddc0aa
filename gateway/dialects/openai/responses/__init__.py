"""OpenAI's responses: items in, items out; whole, streamed, and gone on from.

Pure. Entered by the dialect, its body, the types of its answers, and how kept ones are told.
"""

from gateway.dialects.openai.responses.answers import (
    InputTokensAnswer,
    ResponseAnswer,
    ResponseEvent,
)
from gateway.dialects.openai.responses.background import as_it_stands, is_made, last_event
from gateway.dialects.openai.responses.bodies import ResponsesBody, ResponsesCountBody
from gateway.dialects.openai.responses.dialect import OpenAIInputTokens, OpenAIResponses
from gateway.dialects.openai.responses.listing import render_deleted, render_items
from gateway.dialects.openai.responses.replay import replayed

__all__ = [
    "InputTokensAnswer",
    "OpenAIInputTokens",
    "OpenAIResponses",
    "ResponseAnswer",
    "ResponseEvent",
    "ResponsesBody",
    "ResponsesCountBody",
    "as_it_stands",
    "is_made",
    "last_event",
    "render_deleted",
    "render_items",
    "replayed",
]
