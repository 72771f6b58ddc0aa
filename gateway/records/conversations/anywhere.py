"""Talks to this node's records and to the gateways of other nodes: reads and changes the
conversations of all nodes.

A conversation is stored on the node whose gateway created it. Its id contains that node, so any
gateway can ask that node for it. An acknowledged item is on the disk. Two requests can continue the
same conversation at the same time. Each of them reads the conversation when it begins, and adds its
own items when it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bus.calls import NodeCalls
from bus.calls import table as calls
from bus.process.clock import wall
from bus.wire.calls.conversations import (
    Added,
    AddItems,
    EndTurn,
    FindConversation,
    LabelConversation,
    ReadItem,
    ReadItems,
    ReadPage,
    RemoveConversation,
    RemoveItem,
)
from bus.wire.errors import ShoalError
from bus.wire.ids import NodeId, RequestId, owner_of
from gateway.dialects.dialect import KeptAnswer, NamedItem
from gateway.records.answers import AnswerRecords
from gateway.records.conversations import table
from gateway.records.conversations.here import ConversationsHere
from gateway.records.conversations.table import FAR_BYTES, OfOwner
from gateway.records.node_records import NodeRecords
from gateway.records.statements import RecordsUnavailable


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its items, but with their number and bytes. `labels` are the labels
    that the client set, as a JSON object."""

    request: RequestId
    created_at_s: float
    labels: bytes
    items: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FewItems:
    """Some consecutive items of a conversation, and whether more items follow after them."""

    items: tuple[bytes, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """An ended answer that continues a conversation: the items that it adds, and the answer itself
    (`to_store`) if the client wants it stored. `run` is the request that made the answer; `answer`
    is the id by which clients find the answer."""

    owner: str
    conversation: RequestId
    run: RequestId
    answer: RequestId
    items: tuple[NamedItem, ...]
    to_store: KeptAnswer | None


class ConversationRecords:
    """Reads and changes the conversations of every node, for one HTTP process of `node`. Methods
    raise RecordsUnavailable if this node's file cannot be used, and CallFailed if another
    node does not reply. Only `end` does not raise; it returns the reason.
    """

    def __init__(
        self, records: NodeRecords, answers: AnswerRecords, far: NodeCalls, node: NodeId
    ) -> None:
        self._records = records
        self._answers = answers
        self._far = far
        self._node = node
        here = ConversationsHere(records)
        far.answer(calls.FIND_CONVERSATION, here.find)
        far.answer(calls.READ_ITEMS, here.items)
        far.answer(calls.READ_PAGE, here.page)
        far.answer(calls.READ_ITEM, here.named)
        far.answer(calls.LABEL_CONVERSATION, here.label)
        far.answer(calls.REMOVE_CONVERSATION, here.remove)
        far.answer(calls.REMOVE_ITEM, here.drop)
        far.answer(calls.ADD_ITEMS, here.add)
        far.answer(calls.END_TURN, here.end)

    def is_here(self, request: RequestId) -> bool:
        """Return whether a conversation belongs to this node."""
        home = owner_of(request)
        return home is not None and home[0] == self._node

    async def begin(
        self, owner: str, request: RequestId, labels: bytes, items: Sequence[NamedItem]
    ) -> Conversation:
        """Begin a conversation on this node."""
        if not self._answers.keeps_any:
            raise RecordsUnavailable("this node stores no answers and no conversations")
        now_s = wall()
        await self._records.write(table.begun(OfOwner(owner, request), labels, items, now_s))
        size_bytes = sum(len(content) for _, content in items)
        return Conversation(request, now_s, labels, len(items), size_bytes)

    async def find(self, owner: str, request: RequestId) -> Conversation | None:
        """Return a conversation of this owner. None if it does not exist."""
        find = FindConversation(owner=owner, request=request)
        reply = await self._far.ask_owner(request, calls.FIND_CONVERSATION, find)
        if reply is None or reply.conversation is None:
            return None
        stored = reply.conversation
        return Conversation(
            request, stored.created_at_s, stored.labels, stored.items, stored.size_bytes
        )

    async def items(self, owner: str, request: RequestId, job: RequestId) -> list[bytes] | None:
        """Return all items in order, except items that runs of `job` added: a job that runs again
        does not read the items of its earlier runs."""
        read = ReadItems(owner=owner, request=request, job=job)
        reply = await self._far.ask_owner(request, calls.READ_ITEMS, read)
        return None if reply is None or reply.items is None else list(reply.items)

    async def page(
        self, owner: str, request: RequestId, limit: int, after: str, *, descends: bool
    ) -> FewItems | None:
        """Return at most `limit` items after the item `after`. None if the conversation or the item
        `after` does not exist."""
        read = ReadPage(owner=owner, request=request, limit=limit, after=after, descends=descends)
        reply = await self._far.ask_owner(request, calls.READ_PAGE, read)
        if reply is None or reply.items is None:
            return None
        return FewItems(reply.items[:limit], len(reply.items) > limit)

    async def item(self, owner: str, request: RequestId, name: str) -> bytes | None:
        read = ReadItem(owner=owner, request=request, name=name)
        reply = await self._far.ask_owner(request, calls.READ_ITEM, read)
        return reply.items[0] if reply is not None and reply.items else None

    async def label(self, owner: str, request: RequestId, labels: bytes) -> bool:
        """Replace the labels of a conversation. Return False if it does not exist."""
        label = LabelConversation(owner=owner, request=request, labels=labels)
        return await self._far.have_done(request, calls.LABEL_CONVERSATION, label)

    async def remove(self, owner: str, request: RequestId) -> bool:
        """Delete a conversation and its items. Return False if it does not exist."""
        remove = RemoveConversation(owner=owner, request=request)
        return await self._far.have_done(request, calls.REMOVE_CONVERSATION, remove)

    async def drop(self, owner: str, request: RequestId, name: str) -> bool:
        """Delete the item `name`. Return False if it does not exist."""
        remove = RemoveItem(owner=owner, request=request, name=name)
        return await self._far.have_done(request, calls.REMOVE_ITEM, remove)

    async def add(
        self, owner: str, request: RequestId, items: Sequence[NamedItem], by: RequestId
    ) -> Added:
        """Add the items of the request `by`, all or none. If the conversation is on another node,
        at most `FAR_BYTES` can be added."""
        add = AddItems(owner=owner, request=request, items=tuple(items), run=by)
        reply = await self._far.ask_owner(request, calls.ADD_ITEMS, add)
        return "gone" if reply is None else reply.added

    async def end(self, turn: EndedTurn) -> str:
        """Add the items of an answer to its conversation, and store the answer. If the conversation
        is on this node, this is one transaction. Otherwise the items are added first, then the
        answer is stored. Return the reason if a step failed, else ""."""
        if not self.is_here(turn.conversation):
            return await self._end_elsewhere(turn)
        how = self._answers.how_to_keep(turn.owner, turn.answer, turn.to_store)
        which = OfOwner(turn.owner, turn.conversation)
        added = table.added(which, turn.items, wall(), run=turn.run, job=turn.answer)
        try:
            changed = await self._records.write_made(lambda: [*how.make(), *added])
        except RecordsUnavailable as error:
            return self._answers.tell_lost(turn.answer, str(error))
        if not changed[-len(added)]:
            return self._answers.tell_lost(turn.answer, GONE)
        return how.why and self._answers.tell_lost(turn.answer, how.why)

    # --- internals -------------------------------------------------------------------------------

    async def _end_elsewhere(self, turn: EndedTurn) -> str:
        why = ""
        if sum(len(content) for _, content in turn.items) > FAR_BYTES:
            why = (
                "too many bytes for a conversation that another node stores; the limit is "
                f"{FAR_BYTES} bytes"
            )
        else:
            end = EndTurn(
                owner=turn.owner,
                request=turn.conversation,
                items=turn.items,
                run=turn.run,
                job=turn.answer,
            )
            try:
                if not await self._far.have_done(turn.conversation, calls.END_TURN, end):
                    why = GONE
            except ShoalError as error:
                why = str(error)
        if why:
            self._answers.tell_lost(turn.answer, why)
        if turn.to_store is not None:
            why = await self._answers.keep(turn.owner, turn.answer, turn.to_store) or why
        return why


GONE = "the conversation was deleted in the meantime"
