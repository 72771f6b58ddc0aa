"""Talks to other nodes: offers them this node's runs of KV, and says which runs it no longer has.

Runs in the weights thread; another thread lists the files (`disk`). The hash of the model's files
takes long, so it is computed only if a run shares blocks with the prompt of the asking node.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from pathlib import Path

from bus.models.kv import KvKey, KvLimits
from bus.wire.ids import NodeId
from bus.wire.kv import AskRun, AskRunsGone, RunOffered, RunsGone
from worker.transfer.disk_thread import DiskThread
from worker.transfer.kv_moves.shelf import RunMatch, RunShelf, content_for
from worker.transfer.thread import ThreadParts

MOST_ASKED = 16
"""If this many questions of other nodes wait, further ones are answered as if there were no run."""
MOST_LENT = 64


class RunLender:
    """Answers the questions of other nodes about the KV of this one, `node`. The thread `disk`
    reads the shelf."""

    def __init__(
        self, parts: ThreadParts, limits: KvLimits, shelf: RunShelf, disk: DiskThread, node: NodeId
    ) -> None:
        self._parts = parts
        self._shelf = shelf
        self._disk = disk
        self._node = node
        self._questions = 0
        self._lends = limits.moves and limits.most_bytes > 0
        parts.beside.answers[AskRunsGone] = self._asked_gone
        parts.beside.answers[AskRun] = self._asked_run

    def _asked_run(self, asker: bytes, ask: AskRun) -> None:
        """Offer another node the run that shares most blocks with its prompt."""
        path = self._parts.models().get(ask.model)
        if path is None or not self._lends or self._questions >= MOST_ASKED:
            self._parts.send(asker, RunOffered())
            return
        self._questions += 1
        work = partial(self._shelf.best, ask, path)
        self._disk.add(lambda _stopped: work(), partial(self._matched, asker, ask, path))

    def _matched(
        self, asker: bytes, ask: AskRun, path: Path, match: RunMatch | Exception | None
    ) -> None:
        if match is None or isinstance(match, Exception):
            self._questions -= 1
            self._parts.send(asker, RunOffered())
            return
        key = KvKey(match.file.real.parent.name, ask.how)
        work = partial(content_for, key, path, ask.adapter, self._parts.hashes)
        self._parts.hashing.add(work, partial(self._offer, asker, match))

    def _offer(self, asker: bytes, match: RunMatch, content: str | Exception) -> None:
        self._questions -= 1
        if isinstance(content, Exception):
            self._parts.send(asker, RunOffered())
            return
        file, lent = match.file, self._parts.beside.files
        digest = sha256(f"{file.real} {file.inode} {file.size_bytes}".encode()).hexdigest()
        lent.pop(digest, None)
        while len(lent) >= MOST_LENT:
            del lent[next(iter(lent))]
        lent[digest] = file
        offer = RunOffered(
            blocks=match.blocks,
            content=content,
            name=match.name,
            size_bytes=file.size_bytes,
            digest=digest,
            origin=NodeId(match.origin) or self._node,
            limit_bytes_per_s=self._parts.bytes_per_s,
        )
        self._parts.send(asker, offer)

    def _asked_gone(self, asker: bytes, ask: AskRunsGone) -> None:
        def answer(names: list[str] | Exception) -> None:
            """Send the names of the runs that are gone."""
            if not isinstance(names, Exception):
                self._parts.send(asker, RunsGone(names=tuple(names)))

        self._disk.add(lambda _stopped: self._shelf.missing(ask.names), answer)
