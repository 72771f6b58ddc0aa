"""Talks to the records file and to the gateways of other nodes: stored conversations.

A conversation is on the node that took it, which its id names, within the limits of stored answers.
An answer and the items that it adds to a conversation of its node are written in one transaction.
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
