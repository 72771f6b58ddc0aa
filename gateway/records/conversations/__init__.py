"""Talks to the records file, and to the gateways of other nodes: conversations that are kept.

A conversation is on the node that took it, which its id names, in the bounds of kept answers. What
an answer adds is written in one transaction with the answer, where both are of this node.
"""

from gateway.records.conversations.anywhere import (
    Conversation,
    ConversationRecords,
    EndedTurn,
    FewItems,
)
from gateway.records.conversations.here import Added
from gateway.records.conversations.refusals import (
    conversation_full,
    conversation_not_found,
    conversation_too_far,
    no_such_item,
)
from gateway.records.conversations.table import FAR_BYTES, MOST_BYTES, MOST_ITEMS

__all__ = [
    "FAR_BYTES",
    "MOST_BYTES",
    "MOST_ITEMS",
    "Added",
    "Conversation",
    "ConversationRecords",
    "EndedTurn",
    "FewItems",
    "conversation_full",
    "conversation_not_found",
    "conversation_too_far",
    "no_such_item",
]
