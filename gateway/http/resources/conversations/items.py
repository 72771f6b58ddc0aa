"""Talks to clients about the items of a conversation: added, listed, told, removed."""

from __future__ import annotations

from falcon.asgi import Request, Response

from gateway.dialects.body import bad_field
from gateway.dialects.faults import HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.http.callers import owner_of_kept
from gateway.http.resources.answers import records_told
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
    """The path of a conversation's items."""

    async def on_post(self, req: Request, resp: Response, conversation_id: str) -> None:
        """Add items, all or none: they are on the disk when they are answered with. 404 for a
        conversation that is not there, 400 for one without room."""
        service = self.service
        asked, items = await self.asked_items(req, resp, self.endpoint.shapes.added)
        owner, request = await owner_of_kept(req, service.options), request_id_of(conversation_id)
        size_bytes = sum(len(content) for _, content in items)
        if size_bytes > FAR_BYTES and not service.conversations.is_here(request):
            raise HttpFaultRaised(conversation_too_far("items"))
        with records_told():
            became = await service.conversations.add(owner, request, items, asked.request)
        match became:
            case "gone":
                raise HttpFaultRaised(conversation_not_found(conversation_id))
            case "full":
                raise HttpFaultRaised(conversation_full("items"))
            case "there":
                text = "the conversation already has an item with one of these ids; omit it"
                raise bad_field("items", text)
            case "added":
                contents = [content for _, content in items]
                resp.data = self.endpoint.shapes.items(contents, False, _includes(req))

    async def on_get(self, req: Request, resp: Response, conversation_id: str) -> None:
        """Answer with a page of the items. 404 for a conversation that is not there."""
        service, shapes = self.service, self.endpoint.shapes
        query = {name: value for name in _QUERY if (value := req.get_param(name)) is not None}
        asked = shapes.page(query, _includes(req))
        found = await found_conversation(service, req, conversation_id)
        owner = await owner_of_kept(req, service.options)
        with records_told():
            page = await service.conversations.page(
                owner, found.request, asked.limit, asked.after, descends=asked.descends
            )
        if page is None:
            raise bad_field("after", f"no object with the id '{asked.after[:80]}'")
        resp.data = shapes.items(page.items, page.has_more, asked.includes)


class ConversationItem(ConversationResource):
    """The path of one item of a conversation."""

    async def on_get(
        self, req: Request, resp: Response, conversation_id: str, item_id: str
    ) -> None:
        """Answer with the item. 404 for one that is not there."""
        service, shapes = self.service, self.endpoint.shapes
        includes = shapes.page({}, _includes(req)).includes
        owner, request = await owner_of_kept(req, service.options), request_id_of(conversation_id)
        with records_told():
            item = await service.conversations.item(owner, request, item_id)
        if item is None:
            await self._absent(req, conversation_id, item_id)
        else:
            resp.data = shapes.item(item, includes)

    async def on_delete(
        self, req: Request, resp: Response, conversation_id: str, item_id: str
    ) -> None:
        """Remove the item, and answer with its conversation. 404 for one that is not there."""
        service = self.service
        owner, request = await owner_of_kept(req, service.options), request_id_of(conversation_id)
        with records_told():
            dropped = await service.conversations.drop(owner, request, item_id)
        if not dropped:
            await self._absent(req, conversation_id, item_id)
        found = await found_conversation(service, req, conversation_id)
        resp.data = self.endpoint.shapes.told(found.request, found.created_at_s, found.labels)

    async def _absent(self, req: Request, conversation_id: str, item_id: str) -> None:
        """Raise HttpFaultRaised (404) for the conversation, or for the item where that is there."""
        await found_conversation(self.service, req, conversation_id)
        raise HttpFaultRaised(no_such_item(conversation_id, item_id))


def _includes(req: Request) -> list[str]:
    """Return what a query asks for beside the usual; clients write the list's name with brackets,
    too."""
    return [
        *(req.get_param_as_list("include") or ()),
        *(req.get_param_as_list("include[]") or ()),
    ]
