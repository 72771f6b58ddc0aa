"""Talks to the records file, in the records thread: reads and changes the conversations of this
node.

Arguments are plain data, because the gateways of other nodes call the same methods. Every method
raises RecordsUnavailable while the file cannot be used. When a method that adds items returns, the
items are on the disk.
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
"""The result of adding items. `gone`: the conversation does not exist. `full`: it would exceed its
limits. `there`: it already has an item of the same name."""


class ConversationsHere:
    """The conversations of a node, as one HTTP process has them."""

    def __init__(self, records: NodeRecords) -> None:
        self._records = records

    async def find(self, which: OfOwner) -> list[Any] | None:
        """Return created_at_s, labels, items and size_bytes of a conversation."""
        [rows] = await self._read(table.find(which))
        return list(rows[0]) if rows else None

    async def items(self, which: OfOwner, job: str) -> list[bytes] | None:
        """Return all items in order, except items that runs of `job` added."""
        there, rows = await self._read(table.find(which), table.contents(which, job))
        return [content for (content,) in rows] if there else None

    async def page(
        self, which: OfOwner, limit: int, after: str, descends: bool
    ) -> list[bytes] | None:
        """Return up to `limit` + 1 items after the item `after`. None if the conversation or the
        item `after` does not exist."""
        there, at, rows = await self._read(
            table.find(which),
            table.named(which, [after]),
            table.page(which, limit + 1, after, descends=descends),
        )
        return [content for (content,) in rows] if there and (at or not after) else None

    async def named(self, which: OfOwner, name: str) -> list[bytes]:
        """Return a list with the item `name`, or an empty list if it does not exist."""
        [rows] = await self._read(table.named(which, [name]))
        return [content for content, _ in rows]

    async def label(self, which: OfOwner, labels: bytes) -> bool:
        """Replace the labels of a conversation. Return False if it does not exist."""
        return (await self._records.write(table.labelled(which, labels, wall())))[0] > 0

    async def remove(self, which: OfOwner) -> bool:
        """Delete a conversation and its items. Return False if it does not exist."""
        return (await self._records.write([table.removed(which)]))[0] > 0

    async def drop(self, which: OfOwner, name: str) -> bool:
        """Delete the item `name`. Return False if it does not exist."""
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
        """Add the items of a run of `job`. Return False if the conversation does not exist."""
        given = [(str(name), bytes(content)) for name, content in items]
        added = table.added(which, given, wall(), run=RequestId(run), job=RequestId(job))
        return (await self._records.write(added))[0] > 0

    async def _read(self, *questions: Statement) -> list[list[Sequence[Any]]]:
        def ask(file: RecordsFile) -> list[list[Sequence[Any]]]:
            """Read all queries at one moment."""
            return file.read(questions)

        return await self._records.ask(ask)
