"""Talks to this node's records, and to the gateways of other nodes: conversations of the cluster.

A conversation is in the records of the node whose gateway took it, which its id names; every
gateway asks that node. What was added is on the disk when it is acknowledged. Two requests may go
on with one conversation at a time: each sees it as it was when it began, and adds its own in one
piece when it ends.
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
    """A conversation without its items: how many it has, and of how many bytes. `labels` are its
    client's, as a JSON object."""

    request: RequestId
    created_at_s: float
    labels: bytes
    items: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FewItems:
    """Some items of a conversation in their order, and whether there are more behind them."""

    items: tuple[bytes, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """What an answer that has ended adds to a conversation, and the answer itself where it is to be
    kept. `run` is the request that made it, `answer` the one by which it is found."""

    owner: str
    conversation: RequestId
    run: RequestId
    answer: RequestId
    items: tuple[NamedItem, ...]
    kept: KeptAnswer | None


class ConversationRecords:
    """The conversations of every node, as one HTTP process of `node` finds them.

    Every method raises RecordsUnavailable where our own file cannot be used, and RecordsElsewhere
    where another node does not tell; `end` says so instead."""

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
        """Return whether a conversation is one of our own node's."""
        home = owner_of(request)
        return home is not None and home[0] == self._node

    async def begin(
        self, owner: str, request: RequestId, labels: bytes, items: Sequence[NamedItem]
    ) -> Conversation:
        """Begin a conversation of this node."""
        if not self._answers.keeps_any:
            raise RecordsUnavailable("this node stores no answers and no conversations")
        now_s = wall()
        await self._records.write(table.begun(OfOwner(owner, request), labels, items, now_s))
        size_bytes = sum(len(content) for _, content in items)
        return Conversation(request, now_s, labels, len(items), size_bytes)

    async def find(self, owner: str, request: RequestId) -> Conversation | None:
        """Return a conversation of this owner's; None where there is none."""
        found = await self._asked(_FIND, owner, request)
        return None if found is None else Conversation(request, *found)

    async def items(self, owner: str, request: RequestId, job: RequestId) -> list[bytes] | None:
        """Return all items in their order, without those that runs of `job` have added."""
        return await self._asked(_ITEMS, owner, request, job)

    async def page(
        self, owner: str, request: RequestId, limit: int, after: str, *, descends: bool
    ) -> FewItems | None:
        """Return at most so many items, those behind the one named `after`; None where there is no
        conversation, or none of that name in it."""
        found = await self._asked(_PAGE, owner, request, limit, after, descends)
        return None if found is None else FewItems(tuple(found[:limit]), len(found) > limit)

    async def item(self, owner: str, request: RequestId, name: str) -> bytes | None:
        """Return an item by its name."""
        found = await self._asked(_NAMED, owner, request, name)
        return found[0] if found else None

    async def label(self, owner: str, request: RequestId, labels: bytes) -> bool:
        """Give a conversation other labels; False where there is none."""
        return await self._asked(_LABEL, owner, request, labels) is True

    async def remove(self, owner: str, request: RequestId) -> bool:
        """Remove a conversation and its items; False where there is none."""
        return await self._asked(_REMOVE, owner, request) is True

    async def drop(self, owner: str, request: RequestId, name: str) -> bool:
        """Remove an item; False where there is none of that name."""
        return await self._asked(_DROP, owner, request, name) is True

    async def add(
        self, owner: str, request: RequestId, items: Sequence[NamedItem], by: RequestId
    ) -> Added:
        """Add items, all or none, which the request `by` brings; of another node's conversation at
        most `FAR_BYTES`."""
        added: Added | None = await self._asked(_ADD, owner, request, list(items), by)
        return added or "gone"

    async def end(self, turn: EndedTurn) -> str:
        """Add what an answer adds, and keep the answer: in one transaction where the conversation
        is of this node, else the conversation first. Return why one of them is not; empty: both
        are."""
        if not self.is_here(turn.conversation):
            return await self._end_elsewhere(turn)
        kept = self._answers.kept_by(turn.owner, turn.answer, turn.kept)
        which = OfOwner(turn.owner, turn.conversation)
        added = table.added(which, turn.items, wall(), run=turn.run, job=turn.answer)
        try:
            changed = await self._records.write_made(lambda: [*kept.make(), *added])
        except RecordsUnavailable as error:
            return self._answers.tell_lost(turn.answer, str(error))
        if not changed[-len(added)]:
            return self._answers.tell_lost(turn.answer, GONE)
        return kept.why and self._answers.tell_lost(turn.answer, kept.why)

    # --- below -----------------------------------------------------------------------------------

    async def _end_elsewhere(self, turn: EndedTurn) -> str:
        why = ""
        if sum(len(content) for _, content in turn.items) > FAR_BYTES:
            why = (
                f"too much at once for a conversation of another node; the limit is {FAR_BYTES} "
                "bytes"
            )
        else:
            told = [list(turn.items), turn.run, turn.answer]
            try:
                if not await self._asked(_END, turn.owner, turn.conversation, *told):
                    why = GONE
            except ShoalError as error:
                why = str(error)
        if why:
            self._answers.tell_lost(turn.answer, why)
        if turn.kept is not None:
            why = await self._answers.keep(turn.owner, turn.answer, turn.kept) or why
        return why

    async def _asked(self, verb: str, owner: str, request: RequestId, *more: Any) -> Any:
        """Return what the node says that a conversation's id names; None where there is none."""
        return await ask_home(self._far, request, verb, [owner, request, *more])


GONE = "the conversation was deleted in the meantime"


def _answered(by: Callable[..., Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    async def answered(arguments: Any) -> Any:
        """Answer a verb, whichever gateway asks."""
        owner, request, *more = arguments
        return await by(OfOwner(str(owner), RequestId(request)), *more)

    return answered
