"""Talks to the records file, in its thread: the conversations of this node, for any gateway.

Arguments are plain data, because the gateways of other nodes call the same methods. Every method
raises RecordsUnavailable while the file cannot be used. Added items are on the disk when it
returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from bus.process.clock import wall
from bus.wire.ids import RequestId
from gateway.records.conversations import table
from gateway.records.conversations.table import OfOwner
from gateway.records.file import RecordsFile
from gateway.records.node_records import NodeRecords
from gateway.records.statements import Statement

Added = Literal["added", "gone", "full", "there"]
"""The fate of items. `gone`: no such conversation. `full`: it has no room. `there`: a name is
taken."""


class ConversationsHere:
    """The conversations of a node, as one HTTP process has them."""

    def __init__(self, records: NodeRecords) -> None:
        self._records = records

    async def find(self, which: OfOwner) -> list[Any] | None:
        """Return created_at_s, labels, items and size_bytes of a conversation."""
        [rows] = await self._read(table.find(which))
        return list(rows[0]) if rows else None

    async def items(self, which: OfOwner, job: str) -> list[bytes] | None:
        """Return all items in order, without those added by runs of `job`."""
        there, rows = await self._read(table.find(which), table.contents(which, job))
        return [content for (content,) in rows] if there else None

    async def page(
        self, which: OfOwner, limit: int, after: str, descends: bool
    ) -> list[bytes] | None:
        """Return up to `limit` + 1 items after the item named `after`. None if the conversation or
        that item is missing."""
        there, at, rows = await self._read(
            table.find(which),
            table.named(which, [after]),
            table.page(which, limit + 1, after, descends=descends),
        )
        return [content for (content,) in rows] if there and (at or not after) else None

    async def named(self, which: OfOwner, name: str) -> list[bytes]:
        """Return the item of that name in a list; an empty list without it."""
        [rows] = await self._read(table.named(which, [name]))
        return [content for content, _ in rows]

    async def label(self, which: OfOwner, labels: bytes) -> bool:
        """Replace a conversation's labels; return False if there is none."""
        return (await self._records.write(table.labelled(which, labels, wall())))[0] > 0

    async def remove(self, which: OfOwner) -> bool:
        """Delete a conversation and its items; return False if there is none."""
        return (await self._records.write([table.removed(which)]))[0] > 0

    async def drop(self, which: OfOwner, name: str) -> bool:
        """Delete an item; return False if there is none of that name."""
        return (await self._records.write(table.item_removed(which, name, wall())))[0] > 0

    async def add(self, which: OfOwner, items: Sequence[Sequence[Any]], run: str) -> Added:
        """Add items of the request `run`, all or none."""
        given = [(str(name), bytes(content)) for name, content in items]
        names = table.named(which, [name for name, _ in given])
        there, already = await self._read(table.find(which), names)
        if not there:
            return "gone"
        _, _, count, size_bytes = there[0]
        if already:
            # a repeated call: the first one added them
            return "added" if {by for _, by in already} == {run} else "there"
        size_bytes += sum(len(content) for _, content in given)
        if count + len(given) > table.MOST_ITEMS or size_bytes > table.MOST_BYTES:
            return "full"
        changed = await self._records.write(table.added(which, given, wall(), run=RequestId(run)))
        return "added" if changed[0] else "gone"

    async def end(self, which: OfOwner, items: Sequence[Sequence[Any]], run: str, job: str) -> bool:
        """Add the items of a run of `job`; return False if there is no such conversation."""
        given = [(str(name), bytes(content)) for name, content in items]
        added = table.added(which, given, wall(), run=RequestId(run), job=RequestId(job))
        return (await self._records.write(added))[0] > 0

    async def _read(self, *questions: Statement) -> list[list[Sequence[Any]]]:
        def ask(file: RecordsFile) -> list[list[Sequence[Any]]]:
            """Read all queries at one moment."""
            return file.read(questions)

        return await self._records.ask(ask)
