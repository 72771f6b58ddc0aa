"""Talks to clients about conversations and their items: create, show, label and delete them.

Requests to a model add items too, but `gateway.records` writes those together with the stored
answer.
"""

from gateway.http.resources.conversations.items import ConversationItem, ConversationItems
from gateway.http.resources.conversations.one import ConversationList, OneConversation

__all__ = ["ConversationItem", "ConversationItems", "ConversationList", "OneConversation"]
