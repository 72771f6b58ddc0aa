"""Talks to another node's store and to the disk: copies one run of KV.

The disk's thread creates and checks the file; pieces are written as they arrive. The file has a
temporary name until its checksums were checked. A file that is late, damaged or not as offered is
deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bus.links.transport import Link
from bus.models.kv import UNFINISHED, BadRun, KvLimits, check_run, evict, make_private
from bus.wire.kv import SeekRun
from bus.wire.messages.weights import WeightsRefused
from worker.transfer.disk_thread import DiskThread
from worker.transfer.kv_moves.choice import CopyPlan
from worker.transfer.kv_moves.fetch import RunFetch
from worker.transfer.thread import ThreadParts

Ended = Callable[[str], None]
"""Called once when a copy has ended, with the reason if it failed; empty if the file is there."""


class RunCopy:
    """A copy of the run in `plan` over `link`, to the file `path`. `number` is unique in this
    process. `ended` is called in the loop's thread."""

    def __init__(
        self,
        parts: ThreadParts,
        disk: DiskThread,
        plan: CopyPlan,
        question: SeekRun,
        link: Link,
        path: Path,
        number: int,
        ended: Ended,
    ) -> None:
        self.plan = plan
        self.began_at = parts.reactor.now()
        self._parts = parts
        self._disk = disk
        self._question = question
        self._link = link
        self._path = path
        self._part = path.with_name(f"{path.name}.{os.getpid()}-{number}{UNFINISHED}")
        self._ended = ended
        self._fetch = RunFetch(plan.offered, self.began_at + plan.wait_s, plan.again_s)
        self._file = -1
        self._over = False

    @property
    def received_bytes(self) -> int:
        return self._fetch.received_bytes

    def begin(self, limits: KvLimits) -> None:
        """Create the file, then request its pieces."""
        opening = partial(_open, self._part, limits, self.plan.offered.size_bytes)
        self._disk.add(lambda _stopped: opening(), self._opened)

    def take_piece(self, offset: int, content: bytes) -> None:
        """Write a piece to the disk; once all are there, check the file."""
        if self._file < 0 or not self._fetch.take(offset, len(content)):
            return
        try:
            os.pwrite(self._file, content, offset)
        except OSError as error:
            self._end(f"the file could not be written: {error}")
            return
        if self._fetch.is_complete:
            self._close_file()
            self._disk.add(self._land, self._landed)
        else:
            self._ask()

    def refuse(self, refused: WeightsRefused) -> None:
        """End the copy, unless the store is only busy; then the pieces are requested again."""
        if refused.reason != "busy":
            self._end(refused.message)

    def tick(self, now: float) -> None:
        """Request pieces that did not arrive again; end a copy that is late."""
        if self._fetch.is_late(now):
            self._end("the file did not arrive in time")
        elif self._file >= 0:
            self._ask()

    def discard(self) -> None:
        """Close the file, and delete it if it is unfinished."""
        self._over = True
        self._close_file()
        with contextlib.suppress(OSError):
            self._part.unlink()

    def _opened(self, file: int | Exception) -> None:
        if isinstance(file, Exception):
            self._end(f"the file could not be created: {file}")
            return
        self._file = file
        if self._over:
            self.discard()
        else:
            self._ask()

    def _ask(self) -> None:
        for ask in self._fetch.asks(self._parts.reactor.now()):
            self._link.send(self._parts.pack(ask))

    def _land(self, stopped: Callable[[], bool]) -> None:
        """Check the sums of the file and give it its name. In the thread of the disk. Raises
        OSError, BadRun, Unwanted."""
        question = self._question

        def is_wanted() -> bool:
            """Return whether the copy is still to be checked."""
            return not (stopped() or self._over)

        run = check_run(self._part, self.plan.offered.name, question.how, is_wanted)
        if run.adapter != question.adapter:
            raise BadRun("the file's KV was computed with another adapter")
        self._part.replace(self._path)

    def _landed(self, result: Exception | None) -> None:
        self._end(str(result) if isinstance(result, Exception) else "")

    def _end(self, why: str) -> None:
        if not self._over:
            self.discard()
            self._ended(why)

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _open(path: Path, limits: KvLimits, size_bytes: int) -> int:
    """Make room for a file and open it. Raises OSError."""
    evict(limits, room_bytes=size_bytes)
    make_private(path.parent, limits.root)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
