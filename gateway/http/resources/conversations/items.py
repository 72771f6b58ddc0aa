"""Talks to clients about the items of a conversation: adds, lists, shows and deletes items."""

from __future__ import annotations

from falcon.asgi import Request, Response

from gateway.dialects.body import bad_field
from gateway.dialects.faults import HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.http.callers import owner_of_kept
from gateway.http.resources.conversations.one import ConversationResource, found_conversation
from gateway.records import (
    FAR_BYTES,
    conversation_full,
    conversation_not_found,
    conversation_too_far,
    no_such_item,
)

_QUERY = ("limit", "order", "after")


class ConversationItems(ConversationResource):
    """Handles `/v1/conversations/{id}/items`: adds and lists items."""

    async def on_post(self, req: Request, resp: Response, conversation_id: str) -> None:
        """Add items, all or none. They are on disk before the answer is sent. 404 for an unknown
        conversation, 400 for a full one."""
        records = self.records
        addition, items = await self.asked_items(req, resp, self.endpoint.shapes.added)
        owner, request = await owner_of_kept(req, records.options), request_id_of(conversation_id)
        size_bytes = sum(len(content) for _, content in items)
        if size_bytes > FAR_BYTES and not records.conversations.is_here(request):
            raise HttpFaultRaised(conversation_too_far("items"))
        became = await records.conversations.add(owner, request, items, addition.request)
        match became:
            case "gone":
                raise HttpFaultRaised(conversation_not_found(conversation_id))
            case "full":
                raise HttpFaultRaised(conversation_full("items"))
            case "there":
                text = "the conversation already has an item with one of these ids; omit the id"
                raise bad_field("items", text)
            case "added":
                contents = [content for _, content in items]
                resp.data = self.endpoint.shapes.items(contents, False, _includes(req))

    async def on_get(self, req: Request, resp: Response, conversation_id: str) -> None:
        """Answer with a page of the items. 404 for an unknown conversation."""
        records, shapes = self.records, self.endpoint.shapes
        query = {name: value for name in _QUERY if (value := req.get_param(name)) is not None}
        query_page = shapes.page(query, _includes(req))
        conversation = await found_conversation(records, req, conversation_id)
        owner = await owner_of_kept(req, records.options)
        page = await records.conversations.page(
            owner,
            conversation.request,
            query_page.limit,
            query_page.after,
            descends=query_page.descends,
        )
        if page is None:
            raise bad_field("after", f"no object with the id '{query_page.after[:80]}'")
        resp.data = shapes.items(page.items, page.has_more, query_page.includes)


class ConversationItem(ConversationResource):
    """Handles `/v1/conversations/{id}/items/{item}`: reads and deletes one item."""

    async def on_get(
        self, req: Request, resp: Response, conversation_id: str, item_id: str
    ) -> None:
        """Answer with the item. 404 if it does not exist."""
        records, shapes = self.records, self.endpoint.shapes
        includes = shapes.page({}, _includes(req)).includes
        owner, request = await owner_of_kept(req, records.options), request_id_of(conversation_id)
        item = await records.conversations.item(owner, request, item_id)
        if item is None:
            await self._absent(req, conversation_id, item_id)
        else:
            resp.data = shapes.item(item, includes)

    async def on_delete(
        self, req: Request, resp: Response, conversation_id: str, item_id: str
    ) -> None:
        """Delete the item, and answer with its conversation. 404 if the item does not exist."""
        records = self.records
        owner, request = await owner_of_kept(req, records.options), request_id_of(conversation_id)
        dropped = await records.conversations.drop(owner, request, item_id)
        if not dropped:
            await self._absent(req, conversation_id, item_id)
        conversation = await found_conversation(records, req, conversation_id)
        resp.data = self.endpoint.shapes.conversation(
            conversation.request, conversation.created_at_s, conversation.labels
        )

    async def _absent(self, req: Request, conversation_id: str, item_id: str) -> None:
        """Raise HttpFaultRaised (404) for the conversation or, if that exists, for the item."""
        await found_conversation(self.records, req, conversation_id)
        raise HttpFaultRaised(no_such_item(conversation_id, item_id))


def _includes(req: Request) -> list[str]:
    """Return the extra fields that a query includes, from `include` and `include[]`."""
    return [
        *(req.get_param_as_list("include") or ()),
        *(req.get_param_as_list("include[]") or ()),
    ]
