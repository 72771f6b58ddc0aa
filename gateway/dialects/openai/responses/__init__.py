"""OpenAI's responses API: its requests and responses are lists of items. Responses can be streamed,
stored and continued.

Pure. This package exports the dialect with the types of its bodies and answers. It also exports the
parsers and renderers of stored responses and of conversations.
"""

from gateway.dialects.openai.responses.answers import (
    ConversationTold,
    InputTokensAnswer,
    RemovedConversation,
    RemovedResponse,
    ResponseAnswer,
    ResponseEvent,
)
from gateway.dialects.openai.responses.background import as_it_stands, is_made, last_event
from gateway.dialects.openai.responses.bodies import ResponsesBody, ResponsesCountBody
from gateway.dialects.openai.responses.conversations import (
    CONVERSATION_PREFIX,
    ConversationBody,
    ConversationItemsBody,
    read_conversation,
    read_conversation_items,
    read_conversation_page,
    render_conversation,
    render_conversation_item,
    render_conversation_items,
    render_conversation_removed,
    with_named,
)
from gateway.dialects.openai.responses.dialect import OpenAIInputTokens, OpenAIResponses
from gateway.dialects.openai.responses.listing import item_named, render_deleted, render_items
from gateway.dialects.openai.responses.replay import replayed

__all__ = [
    "CONVERSATION_PREFIX",
    "ConversationBody",
    "ConversationItemsBody",
    "ConversationTold",
    "InputTokensAnswer",
    "OpenAIInputTokens",
    "OpenAIResponses",
    "RemovedConversation",
    "RemovedResponse",
    "ResponseAnswer",
    "ResponseEvent",
    "ResponsesBody",
    "ResponsesCountBody",
    "as_it_stands",
    "is_made",
    "item_named",
    "last_event",
    "read_conversation",
    "read_conversation_items",
    "read_conversation_page",
    "render_conversation",
    "render_conversation_item",
    "render_conversation_items",
    "render_conversation_removed",
    "render_deleted",
    "render_items",
    "replayed",
    "with_named",
]
