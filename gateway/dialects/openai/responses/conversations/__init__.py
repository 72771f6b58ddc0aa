"""OpenAI's conversations API: parses bodies and queries, renders conversations and their items.

Pure. Conversations have the same items as responses, parsed and stored in the same way.
"""

from gateway.dialects.openai.responses.conversations.bodies import (
    MOST_ADDED,
    ConversationBody,
    ConversationItemsBody,
)
from gateway.dialects.openai.responses.conversations.reading import (
    read_conversation,
    read_conversation_items,
    read_conversation_page,
    with_named,
)
from gateway.dialects.openai.responses.conversations.telling import (
    CONVERSATION_PREFIX,
    INCLUDABLE,
    render_conversation,
    render_conversation_item,
    render_conversation_items,
    render_conversation_removed,
)
from gateway.dialects.openai.responses.conversations.turn import begun_turn, turn_of

__all__ = [
    "CONVERSATION_PREFIX",
    "INCLUDABLE",
    "MOST_ADDED",
    "ConversationBody",
    "ConversationItemsBody",
    "begun_turn",
    "read_conversation",
    "read_conversation_items",
    "read_conversation_page",
    "render_conversation",
    "render_conversation_item",
    "render_conversation_items",
    "render_conversation_removed",
    "turn_of",
    "with_named",
]
