"""Talks to clients about conversations: begun, told, labelled, removed; and about their items.

What a request of a model adds to one is written where its answer is kept.
"""

from gateway.http.resources.conversations.items import ConversationItem, ConversationItems
from gateway.http.resources.conversations.one import ConversationList, OneConversation

__all__ = ["ConversationItem", "ConversationItems", "ConversationList", "OneConversation"]
