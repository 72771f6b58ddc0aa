"""Talks to clients about conversations: begun, told, labelled, removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from falcon.asgi import Request, Response

from gateway.dialects import dialect
from gateway.dialects.api_table import AskedItems, KeepsConversations
from gateway.dialects.faults import HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.http.callers import owner_of_kept
from gateway.http.middleware import Resource, read_aside, read_body, tell_ignored
from gateway.http.resources.answers import (
    LABELS_BYTES,
    named_items,
    records_told,
)
from gateway.records import MOST_BYTES, Conversation, conversation_not_found
from gateway.service import HttpService


@dataclass(frozen=True)
class ConversationResource(Resource):
    """A path about conversations."""

    endpoint: KeepsConversations

    async def asked_items(
        self,
        req: Request,
        resp: Response,
        read: Callable[[bytes, dialect.ParseContext], AskedItems],
    ) -> tuple[AskedItems, tuple[dialect.NamedItem, ...]]:
        """Return what a body says, and its items, those of kept answers among them. Raises
        HttpFaultRaised (404, 413), BadRequest."""
        service, options = self.service, self.service.options
        most = min(options.body_limit_bytes, MOST_BYTES)
        body = await read_body(req, most, options.body_s, service.bodies)
        try:
            asked = await read_aside(len(body), partial(read, body, service.parse_context()))
        finally:
            service.bodies.give_back(len(body))
        owner = await owner_of_kept(req, service.options)
        named = await named_items(service, self.endpoint.shapes.item_named, asked.named, owner)
        items = await read_aside(len(body), partial(self.endpoint.shapes.resolved, asked, named))
        tell_ignored(service, resp, "conversations", asked.ignored)
        return asked, items


class ConversationList(ConversationResource):
    """The path at which conversations are begun."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Begin a conversation: it is on the disk when it is answered."""
        asked, items = await self.asked_items(req, resp, self.endpoint.shapes.begun)
        owner = await owner_of_kept(req, self.service.options)
        with records_told():
            begun = await self.service.conversations.begin(
                owner, asked.request, asked.labels, items
            )
        resp.data = self.endpoint.shapes.told(begun.request, begun.created_at_s, begun.labels)


class OneConversation(ConversationResource):
    """The path of a conversation."""

    async def on_get(self, req: Request, resp: Response, conversation_id: str) -> None:
        """Answer with the conversation, without its items. 404 for one that is not there."""
        found = await found_conversation(self.service, req, conversation_id)
        resp.data = self.endpoint.shapes.told(found.request, found.created_at_s, found.labels)

    async def on_post(self, req: Request, resp: Response, conversation_id: str) -> None:
        """Give the conversation these labels alone, and answer with it. 404 for one that is not
        there."""
        service, options = self.service, self.service.options
        body = await read_body(req, min(options.body_limit_bytes, LABELS_BYTES), options.body_s)
        labels = self.endpoint.shapes.labels(body, service.parse_context().limits)
        owner, request = await owner_of_kept(req, service.options), request_id_of(conversation_id)
        with records_told():
            await service.conversations.label(owner, request, labels)
        await self.on_get(req, resp, conversation_id)

    async def on_delete(self, req: Request, resp: Response, conversation_id: str) -> None:
        """Remove the conversation and its items; answers that were made in it stay. 404 for one
        that is not there."""
        service = self.service
        owner, request = await owner_of_kept(req, service.options), request_id_of(conversation_id)
        with records_told():
            removed = await service.conversations.remove(owner, request)
        if not removed:
            raise HttpFaultRaised(conversation_not_found(conversation_id))
        resp.data = self.endpoint.shapes.removed(conversation_id)


async def found_conversation(
    service: HttpService, req: Request, conversation_id: str
) -> Conversation:
    """Return a conversation of the client's. Raises HttpFaultRaised (404, 503, 504)."""
    owner = await owner_of_kept(req, service.options)
    with records_told():
        found = await service.conversations.find(owner, request_id_of(conversation_id))
    if found is None:
        raise HttpFaultRaised(conversation_not_found(conversation_id))
    return found
