"""Refusals for conversations that are not stored or are full.

Pure.
"""

from __future__ import annotations

from gateway.dialects.faults import HttpFault
from gateway.records.conversations.table import FAR_BYTES, MOST_BYTES, MOST_ITEMS


def conversation_not_found(conversation_id: str, field: str | None = None) -> HttpFault:
    """Return the 404 error for a conversation that is not stored. `field` is the field of the body
    that names the conversation, or None if the path names it."""
    text = (
        f"Conversation with id '{conversation_id[:200]}' not found: it is stored on the node that "
        "created it, for the API key of its request, until newer ones replace it"
    )
    return HttpFault(404, "not_found" if field is None else "conversation_not_found", text, field)


def conversation_full(field: str) -> HttpFault:
    """Return the 400 error for items with which a conversation would exceed its limits."""
    text = (
        f"the conversation is full; the limits are {MOST_ITEMS} items and {MOST_BYTES} "
        "bytes: start "
        "another one with the items that you still need, or delete some"
    )
    facts = {"limit_items": MOST_ITEMS, "limit_bytes": MOST_BYTES}
    return HttpFault(400, "conversation_full", text, field, facts=facts)


def conversation_too_far(field: str) -> HttpFault:
    """Return the 413 error for too many bytes in one addition to a conversation of another node."""
    text = (
        f"too many bytes for a conversation that another node stores; the limit is {FAR_BYTES} "
        "bytes; send them to that node, which the conversation's id names, or send less"
    )
    return HttpFault(413, "body_too_large", text, field, facts={"limit_bytes": FAR_BYTES})


def no_such_item(conversation_id: str, item_id: str) -> HttpFault:
    """Return the 404 error for an item that a conversation does not have."""
    text = f"Item with id '{item_id[:200]}' not found in conversation '{conversation_id[:200]}'"
    return HttpFault(404, "not_found", text)
