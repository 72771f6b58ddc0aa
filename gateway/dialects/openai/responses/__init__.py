"""OpenAI's responses: items in, items out; whole, streamed, and gone on from.

Pure. Entered by the dialect, its body, the types of its answers, and how kept ones are told.
"""

from gateway.dialects.openai.responses.answers import ResponseAnswer, ResponseEvent
from gateway.dialects.openai.responses.background import as_it_stands, is_made, last_event
from gateway.dialects.openai.responses.bodies import ResponsesBody
from gateway.dialects.openai.responses.dialect import OpenAIResponses
from gateway.dialects.openai.responses.listing import render_deleted, render_items
from gateway.dialects.openai.responses.replay import replayed

__all__ = [
    "OpenAIResponses",
    "ResponseAnswer",
    "ResponseEvent",
    "ResponsesBody",
    "as_it_stands",
    "is_made",
    "last_event",
    "render_deleted",
    "render_items",
    "replayed",
]
