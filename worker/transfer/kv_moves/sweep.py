"""Talks to other nodes: deletes copies of KV soon after their originals are gone.

Runs in the weights thread; another thread lists and deletes the files. Only the node that computed
a run decides about its copies: this node asks it which runs are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from bus.links.transport import Frames, Link
from bus.process.logs import Log
from bus.wire.codec import decode
from bus.wire.errors import BadMessage
from bus.wire.ids import NodeId
from bus.wire.kv import MOST_NAMES, AskRunsGone, RunsGone
from worker.transfer.disk_thread import DiskThread
from worker.transfer.kv_moves.shelf import RunShelf
from worker.transfer.source import StoreAddress
from worker.transfer.thread import ThreadParts


class CopySweep:
    """Asks the nodes that computed this node's copies whether they still have the originals."""

    def __init__(self, parts: ThreadParts, shelf: RunShelf, disk: DiskThread, log: Log) -> None:
        self._parts = parts
        self._shelf = shelf
        self._disk = disk
        self._log = log
        self._links: list[Link] = []

    def close(self) -> None:
        """Close all connections."""
        for link in list(self._links):
            self._hang_up(link)

    def sweep(self, stores: Mapping[NodeId, StoreAddress]) -> None:
        """Delete the copies whose originals are gone, if the nodes that computed them are in
        `stores`."""
        for link in list(self._links):
            self._hang_up(link)
        self._disk.add(lambda _stopped: self._shelf.copies(), partial(self._swept, stores))

    def _swept(
        self,
        stores: Mapping[NodeId, StoreAddress],
        copies: Mapping[NodeId, Sequence[str]] | Exception,
    ) -> None:
        if isinstance(copies, Exception):
            return
        for node, names in copies.items():
            store = stores.get(node)
            if store is None:
                continue
            link = self._parts.link("dealer", node)
            self._links.append(link)
            self._parts.reactor.watch(link, partial(self._heard_gone, node))
            link.connect(store.address, peer=node)
            for at in range(0, len(names), MOST_NAMES):
                link.send(self._parts.pack(AskRunsGone(names=tuple(names[at : at + MOST_NAMES]))))

    def _heard_gone(self, node: NodeId, frames: Frames) -> None:
        try:
            message = decode(frames[0]).message
        except BadMessage:
            return
        if isinstance(message, RunsGone) and message.names:
            delete = partial(self._shelf.delete_copies, node, message.names)
            self._disk.add(lambda _stopped: delete(), partial(self._deleted, node))

    def _deleted(self, node: NodeId, count: int | Exception) -> None:
        if isinstance(count, int) and count:
            self._log.info("deleted copies of KV after its node", source=node, count=count)

    def _hang_up(self, link: Link) -> None:
        self._links.remove(link)
        self._parts.reactor.unwatch(link)
        link.close()
