"""Bodies and queries about conversations, read.

Pure. What no model here reads is refused as in a response's input: by its path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.dialects.api_table import AskedItems, AskedPage
from gateway.dialects.body import bad_field, ignoring, read_body
from gateway.dialects.dialect import Extras, Limits, NamedItem, ParseContext
from gateway.dialects.openai.responses.conversations.bodies import (
    ConversationBody,
    ConversationItemsBody,
)
from gateway.dialects.openai.responses.conversations.telling import INCLUDABLE
from gateway.dialects.openai.responses.conversations.turn import named_items
from gateway.dialects.openai.responses.items import AnyItem
from gateway.dialects.openai.responses.listing import kept_items, references_of, resolved
from gateway.dialects.openai.responses.turns import skipped_of, turns_of, unseen_of
from gateway.dialects.openai.shapes import page_query
from gateway.dialects.openai.stored import labels_of
from gateway.dialects.shared_fields import TEXT_ONLY

NO_SUCH_TOOL = "items of tools that are not offered here are not kept"


def read_conversation(body: bytes, context: ParseContext) -> AskedItems:
    """Return what a body about a new conversation says; no bytes say nothing. BadRequest."""
    asked, extras = read_body(ConversationBody, body or b"{}", context.limits)
    labels = labels_of({} if asked.metadata is None else asked.metadata)
    return _asked(asked.items or (), extras, context, labels)


def read_conversation_items(body: bytes, context: ParseContext) -> AskedItems:
    """Return the items of a body. BadRequest."""
    asked, extras = read_body(ConversationItemsBody, body, context.limits)
    return _asked(asked.items, extras, context, b"")


def _asked(
    found: Sequence[AnyItem], extras: Extras, context: ParseContext, labels: bytes
) -> AskedItems:
    turns_of(found, "items")
    request = next(context.ids)
    extras = _told(found, extras, context.limits)
    return AskedItems(
        request, kept_items(found, request), references_of(found, "items"), labels, extras.ignored
    )


def _told(found: Sequence[AnyItem], extras: Extras, limits: Limits) -> Extras:
    extras = ignoring(extras, skipped_of(found, "items"), NO_SUCH_TOOL, limits)
    return ignoring(extras, unseen_of(found, "items"), TEXT_ONLY, limits)


def with_named(asked: AskedItems, named: Mapping[str, bytes]) -> tuple[NamedItem, ...]:
    """Return items with those of `named` in the place of the ones that are named alone. BadRequest
    for one that is there twice."""
    return named_items(resolved(asked.items, named), (), "items")


def read_conversation_page(query: Mapping[str, str], includes: Sequence[str]) -> AskedPage:
    """Return what a query asks for: `limit`, `order` (`desc`), `after`, `include`. BadRequest."""
    for name in includes:
        if name not in INCLUDABLE:
            raise bad_field("include", f"unknown value '{name[:80]}'; use {', '.join(INCLUDABLE)}")
    limit, order = page_query(query, "desc")
    return AskedPage(limit, order == "desc", query.get("after", ""), frozenset(includes))
