"""Talks to this node's records and to the gateways of other nodes: reads and changes the
conversations of all nodes.

A conversation is stored on the node whose gateway created it. Its id contains that node, so any
gateway can ask that node for it. An acknowledged item is on the disk. Two requests can continue the
same conversation at the same time. Each of the two reads the conversation when it begins, and adds
all its items when it ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bus.process.clock import wall
from bus.wire.errors import ShoalError
from bus.wire.ids import NodeId, RequestId, owner_of
from gateway.cluster.record_questions import Questions, ask_home
from gateway.dialects.dialect import KeptAnswer, NamedItem
from gateway.records.answers import AnswerRecords
from gateway.records.conversations import table
from gateway.records.conversations.here import Added, ConversationsHere
from gateway.records.conversations.table import FAR_BYTES, OfOwner
from gateway.records.file import RecordsUnavailable
from gateway.records.node_records import NodeRecords

_FIND, _ITEMS, _PAGE, _NAMED, _LABEL, _REMOVE, _DROP, _ADD, _END = (
    f"conversation.{verb}"
    for verb in ("find", "items", "page", "named", "label", "remove", "drop", "add", "end")
)


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
    """Some consecutive items of a conversation, and whether more items follow."""

    items: tuple[bytes, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """An ended answer that continues a conversation: the items that it adds, and the answer itself
    if the client wants it stored. `run` is the request that made the answer; `answer` is the id by
    which clients find the answer."""

    owner: str
    conversation: RequestId
    run: RequestId
    answer: RequestId
    items: tuple[NamedItem, ...]
    kept: KeptAnswer | None


class ConversationRecords:
    """Reads and changes the conversations of every node, for one HTTP process of `node`. Methods
    raise RecordsUnavailable if this node's file cannot be used, and RecordsElsewhere if another
    node does not reply. Only `end` does not raise; it returns the reason.
    """

    def __init__(
        self, records: NodeRecords, answers: AnswerRecords, far: Questions, node: NodeId
    ) -> None:
        self._records = records
        self._answers = answers
        self._far = far
        self._node = node
        here = ConversationsHere(records)
        verbs: dict[str, Callable[..., Awaitable[Any]]] = {
            _FIND: here.find,
            _ITEMS: here.items,
            _PAGE: here.page,
            _NAMED: here.named,
            _LABEL: here.label,
            _REMOVE: here.remove,
            _DROP: here.drop,
            _ADD: here.add,
            _END: here.end,
        }
        for verb, by in verbs.items():
            far.answer(verb, _answered(by))

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
        row = await self._ask_home(_FIND, owner, request)
        return None if row is None else Conversation(request, *row)

    async def items(self, owner: str, request: RequestId, job: RequestId) -> list[bytes] | None:
        """Return all items in order, except items that runs of `job` added."""
        return await self._ask_home(_ITEMS, owner, request, job)

    async def page(
        self, owner: str, request: RequestId, limit: int, after: str, *, descends: bool
    ) -> FewItems | None:
        """Return at most `limit` items after the item `after`. None if the conversation or the item
        `after` does not exist."""
        contents = await self._ask_home(_PAGE, owner, request, limit, after, descends)
        return (
            None if contents is None else FewItems(tuple(contents[:limit]), len(contents) > limit)
        )

    async def item(self, owner: str, request: RequestId, name: str) -> bytes | None:
        contents = await self._ask_home(_NAMED, owner, request, name)
        return contents[0] if contents else None

    async def label(self, owner: str, request: RequestId, labels: bytes) -> bool:
        """Replace the labels of a conversation. Return False if it does not exist."""
        return await self._ask_home(_LABEL, owner, request, labels) is True

    async def remove(self, owner: str, request: RequestId) -> bool:
        """Delete a conversation and its items. Return False if it does not exist."""
        return await self._ask_home(_REMOVE, owner, request) is True

    async def drop(self, owner: str, request: RequestId, name: str) -> bool:
        """Delete the item `name`. Return False if it does not exist."""
        return await self._ask_home(_DROP, owner, request, name) is True

    async def add(
        self, owner: str, request: RequestId, items: Sequence[NamedItem], by: RequestId
    ) -> Added:
        """Add the items of the request `by`, all or none. If the conversation is on another node,
        at most `FAR_BYTES` can be added."""
        added: Added | None = await self._ask_home(_ADD, owner, request, list(items), by)
        return added or "gone"

    async def end(self, turn: EndedTurn) -> str:
        """Add the items of an answer to its conversation, and store the answer. If the conversation
        is on this node, this is one transaction. Otherwise the items are added first, then the
        answer is stored. Return the reason if a step failed, else ""."""
        if not self.is_here(turn.conversation):
            return await self._end_elsewhere(turn)
        how = self._answers.how_to_keep(turn.owner, turn.answer, turn.kept)
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
                f"too much at once for a conversation of another node; the limit is {FAR_BYTES} "
                "bytes"
            )
        else:
            arguments = [list(turn.items), turn.run, turn.answer]
            try:
                if not await self._ask_home(_END, turn.owner, turn.conversation, *arguments):
                    why = GONE
            except ShoalError as error:
                why = str(error)
        if why:
            self._answers.tell_lost(turn.answer, why)
        if turn.kept is not None:
            why = await self._answers.keep(turn.owner, turn.answer, turn.kept) or why
        return why

    async def _ask_home(self, verb: str, owner: str, request: RequestId, *more: Any) -> Any:
        """Return the reply of the node that a conversation's id contains; None if the cluster has
        no such node."""
        return await ask_home(self._far, request, verb, [owner, request, *more])


GONE = "the conversation was deleted in the meantime"


def _answered(by: Callable[..., Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    async def answered(arguments: Any) -> Any:
        """Answer a call of another gateway."""
        owner, request, *more = arguments
        return await by(OfOwner(str(owner), RequestId(request)), *more)

    return answered
