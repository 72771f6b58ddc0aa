"""Parses bodies and queries about conversations.

Pure. As in a response's input, content that no model of shoal can read is refused, and the error
names its path.
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

NO_SUCH_TOOL = "items of unsupported tools are not stored"


def read_conversation(body: bytes, context: ParseContext) -> AskedItems:
    """Return the parsed body of a new conversation; an empty body is valid. Raises BadRequest."""
    parsed_body, extras = read_body(ConversationBody, body or b"{}", context.limits)
    labels = labels_of({} if parsed_body.metadata is None else parsed_body.metadata)
    return _parse_items(parsed_body.items or (), extras, context, labels)


def read_conversation_items(body: bytes, context: ParseContext) -> AskedItems:
    """Return the items that a body adds to a conversation. Raises BadRequest."""
    parsed_body, extras = read_body(ConversationItemsBody, body, context.limits)
    return _parse_items(parsed_body.items, extras, context, b"")


def _parse_items(
    items: Sequence[AnyItem], extras: Extras, context: ParseContext, labels: bytes
) -> AskedItems:
    turns_of(items, "items")
    request = next(context.ids)
    extras = _report_ignored(items, extras, context.limits)
    return AskedItems(
        request, kept_items(items, request), references_of(items, "items"), labels, extras.ignored
    )


def _report_ignored(items: Sequence[AnyItem], extras: Extras, limits: Limits) -> Extras:
    extras = ignoring(extras, skipped_of(items, "items"), NO_SUCH_TOOL, limits)
    return ignoring(extras, unseen_of(items, "items"), TEXT_ONLY, limits)


def with_named(request: AskedItems, named: Mapping[str, bytes]) -> tuple[NamedItem, ...]:
    """Return the items of a request. A reference is replaced by the item of that id in `named`.
    Raises BadRequest if an item occurs twice."""
    return named_items(resolved(request.items, named), (), "items")


def read_conversation_page(query: Mapping[str, str], includes: Sequence[str]) -> AskedPage:
    """Return the parsed query: `limit`, `order` (default `desc`), `after`, `include`. `includes`
    are the known parts of `include`. Raises BadRequest."""
    for name in includes:
        if name not in INCLUDABLE:
            raise bad_field("include", f"unknown value '{name[:80]}'; use {', '.join(INCLUDABLE)}")
    limit, order = page_query(query, "desc")
    return AskedPage(limit, order == "desc", query.get("after", ""), frozenset(includes))
