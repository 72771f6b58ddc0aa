"""Talks to clients about conversations: creates, shows, labels and deletes conversations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from falcon.asgi import Request, Response

from gateway.dialects import dialect
from gateway.dialects.api_table import AskedItems, KeepsConversations
from gateway.dialects.faults import HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.exchange import named_items, read_aside, tell_ignored
from gateway.http.callers import owner_of_kept
from gateway.http.middleware import Resource, read_body
from gateway.http.resources.answers import LABELS_BYTES
from gateway.records import MOST_BYTES, AllRecords, Conversation, conversation_not_found


@dataclass(frozen=True)
class ConversationResource(Resource):
    """Base class of the resources for conversations and their items."""

    endpoint: KeepsConversations

    async def asked_items(
        self,
        req: Request,
        resp: Response,
        read: Callable[[bytes, dialect.ParseContext], AskedItems],
    ) -> tuple[AskedItems, tuple[dialect.NamedItem, ...]]:
        """Return a parsed body and its items, including the items of stored answers that it
        references. Raises HttpFaultRaised (404, 413), BadRequest."""
        parts, options = self.parts, self.parts.options
        most = min(options.body_limit_bytes, MOST_BYTES)
        body = await read_body(req, most, options.body_s, parts.bodies)
        try:
            content = await read_aside(len(body), partial(read, body, parts.parse_context()))
        finally:
            parts.bodies.give_back(len(body))
        owner = await owner_of_kept(req, parts.options)
        named = await named_items(parts, self.endpoint.shapes.item_named, content.named, owner)
        items = await read_aside(len(body), partial(self.endpoint.shapes.resolved, content, named))
        tell_ignored(parts, resp, "conversations", content.ignored)
        return content, items


class ConversationList(ConversationResource):
    """Handles `/v1/conversations`: creates a conversation."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Create a conversation. It is on disk before the answer is sent."""
        content, items = await self.asked_items(req, resp, self.endpoint.shapes.begun)
        owner = await owner_of_kept(req, self.records.options)
        begun = await self.records.conversations.begin(
            owner, content.request, content.labels, items
        )
        resp.data = self.endpoint.shapes.conversation(
            begun.request, begun.created_at_s, begun.labels
        )


class OneConversation(ConversationResource):
    """Handles `/v1/conversations/{id}`: reads, changes and deletes one conversation."""

    async def on_get(self, req: Request, resp: Response, conversation_id: str) -> None:
        """Answer with the conversation, without its items. 404 if it does not exist."""
        conversation = await found_conversation(self.records, req, conversation_id)
        resp.data = self.endpoint.shapes.conversation(
            conversation.request, conversation.created_at_s, conversation.labels
        )

    async def on_post(self, req: Request, resp: Response, conversation_id: str) -> None:
        """Replace the labels, and answer with the conversation. 404 if it does not exist."""
        parts, records = self.parts, self.records
        options = self.parts.options
        body = await read_body(req, min(options.body_limit_bytes, LABELS_BYTES), options.body_s)
        labels = self.endpoint.shapes.labels(body, parts.parse_context().limits)
        owner, request = await owner_of_kept(req, parts.options), request_id_of(conversation_id)
        await records.conversations.label(owner, request, labels)
        await self.on_get(req, resp, conversation_id)

    async def on_delete(self, req: Request, resp: Response, conversation_id: str) -> None:
        """Delete the conversation and its items, but not the stored answers that continued it. 404
        if it does not exist."""
        records = self.records
        owner, request = await owner_of_kept(req, records.options), request_id_of(conversation_id)
        removed = await records.conversations.remove(owner, request)
        if not removed:
            raise HttpFaultRaised(conversation_not_found(conversation_id))
        resp.data = self.endpoint.shapes.removed(conversation_id)


async def found_conversation(
    records: AllRecords, req: Request, conversation_id: str
) -> Conversation:
    """Return a conversation of the client. Raises HttpFaultRaised (404, 503, 504)."""
    owner = await owner_of_kept(req, records.options)
    conversation = await records.conversations.find(owner, request_id_of(conversation_id))
    if conversation is None:
        raise HttpFaultRaised(conversation_not_found(conversation_id))
    return conversation
