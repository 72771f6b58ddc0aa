"""Talks to the records file, in the records thread: reads and changes the conversations of this
node.

Each method answers one call (`bus/calls/table.py`); the gateways of all nodes make these calls.
Every method raises RecordsUnavailable while the file cannot be used. When a method that adds items
returns, the items are on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bus.process.clock import wall
from bus.wire.calls.answers import Done, OwnedRecord
from bus.wire.calls.conversations import (
    AddItems,
    ConversationFound,
    EndTurn,
    FindConversation,
    ItemsAdded,
    ItemsFound,
    LabelConversation,
    ReadItem,
    ReadItems,
    ReadPage,
    RemoveConversation,
    RemoveItem,
    StoredConversation,
)
from gateway.records.conversations import table
from gateway.records.file import RecordsFile
from gateway.records.node_records import NodeRecords
from gateway.records.statements import Statement


class ConversationsHere:
    """Reads and changes the conversations of a node, for one HTTP process."""

    def __init__(self, records: NodeRecords) -> None:
        self._records = records

    async def find(self, call: FindConversation) -> ConversationFound:
        """Return a conversation without its items."""
        [rows] = await self._read(table.find(_which(call)))
        if not rows:
            return ConversationFound()
        created_at_s, labels, items, size_bytes = rows[0]
        stored = StoredConversation(
            created_at_s=created_at_s, labels=labels, items=items, size_bytes=size_bytes
        )
        return ConversationFound(conversation=stored)

    async def items(self, call: ReadItems) -> ItemsFound:
        """Return all items in order, except items that runs of the job added."""
        which = _which(call)
        there, rows = await self._read(table.find(which), table.contents(which, call.job))
        return ItemsFound(items=tuple(content for (content,) in rows) if there else None)

    async def page(self, call: ReadPage) -> ItemsFound:
        """Return at most `limit` items, and one item more if the conversation has more than
        that."""
        which = _which(call)
        there, at, rows = await self._read(
            table.find(which),
            table.named(which, [call.after]),
            table.page(which, call.limit + 1, call.after, descends=call.descends),
        )
        exists = bool(there) and (bool(at) or not call.after)
        return ItemsFound(items=tuple(content for (content,) in rows) if exists else None)

    async def named(self, call: ReadItem) -> ItemsFound:
        [rows] = await self._read(table.named(_which(call), [call.name]))
        return ItemsFound(items=tuple(content for content, _ in rows))

    async def label(self, call: LabelConversation) -> Done:
        """Replace the labels of a conversation."""
        return await self._change(*table.labelled(_which(call), call.labels, wall()))

    async def remove(self, call: RemoveConversation) -> Done:
        """Delete a conversation and its items."""
        return await self._change(table.removed(_which(call)))

    async def drop(self, call: RemoveItem) -> Done:
        """Delete an item."""
        return await self._change(*table.item_removed(_which(call), call.name, wall()))

    async def add(self, call: AddItems) -> ItemsAdded:
        """Add items of a request, all or none."""
        which = _which(call)
        names = table.named(which, [name for name, _ in call.items])
        there, already = await self._read(table.find(which), names)
        if not there:
            return ItemsAdded(added="gone")
        _, _, count, size_bytes = there[0]
        if already:
            # a repeated call: the first one added them
            is_repeated = {by for _, by in already} == {call.run}
            return ItemsAdded(added="added" if is_repeated else "there")
        size_bytes += sum(len(content) for _, content in call.items)
        if count + len(call.items) > table.MOST_ITEMS or size_bytes > table.MOST_BYTES:
            return ItemsAdded(added="full")
        done = await self._change(*table.added(which, call.items, wall(), run=call.run))
        return ItemsAdded(added="added" if done.done else "gone")

    async def end(self, call: EndTurn) -> Done:
        """Add the items of a complete answer to its conversation."""
        return await self._change(
            *table.added(_which(call), call.items, wall(), run=call.run, job=call.job)
        )

    async def _change(self, *statements: Statement) -> Done:
        """Write the statements. Return whether the first of them changed a row."""
        return Done(done=(await self._records.write(statements))[0] > 0)

    async def _read(self, *questions: Statement) -> list[list[Sequence[Any]]]:
        def ask(file: RecordsFile) -> list[list[Sequence[Any]]]:
            """Run all queries in one transaction."""
            return file.read(questions)

        return await self._records.ask(ask)


def _which(call: OwnedRecord) -> table.OfOwner:
    return table.OfOwner(call.owner, call.request)
