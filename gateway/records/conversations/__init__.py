"""Talks to the records file and to the gateways of other nodes: stores conversations and their
items.

A conversation stays on the node where it was created, and its id contains that node. The limits of
stored answers also apply to conversations. If an answer adds items to a conversation on the same
node, answer and items are written in one transaction.
"""

from bus.wire.calls.conversations import Added
from gateway.records.conversations.anywhere import (
    Conversation,
    ConversationRecords,
    EndedTurn,
    FewItems,
)
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
