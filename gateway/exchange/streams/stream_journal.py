"""Talks to the disk: writes the journals, from which another HTTP process can continue a stream
whose process died.

Each stream that a client may read again has one file (its journal) in a private folder of the node.
Its writer holds a lock on it, which the system releases when the process dies. So a file that can
be locked belongs to a stream that no process serves.

All files are read and written in a thread of their own. The system keeps written bytes when a
process dies, so nothing is synced. If a file can't be written, its stream continues without it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bus.process.logs import Log
from bus.wire.errors import BadMessage
from bus.wire.ids import RequestId
from bus.wire.messages.tokens import ToGateway
from gateway.exchange.streams.stream_records import (
    MOVED,
    EarlierAnswer,
    StreamHead,
    head_record,
    read_head,
    read_records,
    runner_record,
)

FILE_BYTES, ALL_BYTES = 64 << 20, 256 << 20
"""Limits in bytes of one file, and of all files of a process together. A stream whose file would
exceed a limit loses its file, and ends if its process dies."""
MOST_WAIT_S = 300.0
"""Limit of `x_reattach_s`, the seconds for which a client may read its stream again."""
MOST_MOVES = 3
"""If no client asks for a stream, it is taken over by another process at most this many times."""
YOUNG_S = 0.5
"""Files younger than this many seconds are skipped, because the process that creates such a file
may not have locked it yet."""
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_T = TypeVar("_T")


@dataclass(slots=True)
class DiskUse:
    """The bytes of all files of a process, and their limit."""

    limit_bytes: int = ALL_BYTES
    used_bytes: int = 0

    def take(self, count: int) -> None:
        """Count more bytes. Raises OSError if they exceed the limit."""
        if self.used_bytes + count > self.limit_bytes:
            raise OSError(f"the files of all streams exceed {self.limit_bytes >> 20} MiB")
        self.used_bytes += count


class StreamJournal:
    """The locked file of one stream. `size_bytes` is its size, which also counts in `use`."""

    def __init__(
        self,
        path: Path,
        file: int,
        size_bytes: int,
        *,
        use: DiskUse,
        thread: ThreadPoolExecutor,
        log: Log,
    ) -> None:
        self._path = path
        self._file = file
        self._size_bytes = size_bytes
        self._use = use
        self._thread = thread
        self._log = log
        self._is_closed = False

    async def add(self, messages: Sequence[ToGateway]) -> bool:
        """Append a runner's messages. Return False if the file is closed. Remove the file and
        return False if the write fails or would exceed a limit."""
        if self._is_closed:
            return False
        data = b"".join(map(runner_record, messages))
        try:
            if self._size_bytes + len(data) > FILE_BYTES:
                raise OSError("the file of this stream exceeds its limit")
            self._use.take(len(data))
            self._size_bytes += len(data)
            await _run(self._thread, lambda: _append(self._file, data))
        except OSError as error:
            self._log.warning("a stream has no file", file=self._path.name, error=str(error))
            self.remove()
            return False
        return True

    def remove(self) -> None:
        """Delete the file, because the stream no longer needs it. Does not wait."""
        self._close(lambda: self._path.unlink(missing_ok=True))

    def leave(self) -> None:
        """Unlock the file, so that another process can continue the stream. Does not wait."""
        self._close(lambda: None)

    def _close(self, act: Callable[[], None]) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._use.used_bytes -= self._size_bytes

        def close() -> None:
            try:
                act()
            finally:
                os.close(self._file)

        self._thread.submit(close)


@dataclass(frozen=True, slots=True)
class ClaimedStream:
    """A stream whose process died, and which this process takes over."""

    journal: StreamJournal
    head: StreamHead
    answer: EarlierAnswer


class StreamFolder:
    """The files of all streams of a node. The folder `path` is created at its first use. `use`
    counts the bytes of this process's files."""

    def __init__(self, path: Path, log: Log, use: DiskUse | None = None) -> None:
        self.use = use or DiskUse()
        self._path = path
        self._log = log
        self._thread = ThreadPoolExecutor(1, "streams")

    async def begin(self, head: StreamHead) -> StreamJournal | None:
        """Create the file of a stream; None if it can't be written, or exceeds a limit."""
        data = head_record(head)
        try:
            self.use.take(len(data))
        except OSError as error:
            self._log.warning("a stream has no file", request=head.request, error=str(error))
            return None
        file = await _run(self._thread, lambda: self._create(head.request, data))
        if file is not None:
            return self._journal(head.request, file, len(data))
        self.use.used_bytes -= len(data)
        return None

    async def is_held(self, request: RequestId, owner: str) -> bool:
        """Return whether a process serves a stream of this owner."""
        return await _run(self._thread, lambda: self._is_held(request, owner))

    async def claim(self, request: RequestId, owner: str) -> ClaimedStream | None:
        """Take over a stream of this owner, if no process serves it. None if there is no such
        stream."""
        claimed = await _run(self._thread, lambda: self._claim(request, owner))
        if claimed is None:
            return None
        file, size_bytes, head, answer = claimed
        self.use.used_bytes += size_bytes
        return ClaimedStream(self._journal(request, file, size_bytes), head, answer)

    async def orphans(self) -> list[tuple[RequestId, str]]:
        """Return the streams that no process serves, with their owners. Delete the files whose
        streams clients may no longer read. Leave out streams that were taken over `MOST_MOVES`
        times, because they may have killed their processes."""
        return await _run(self._thread, self._orphans)

    def close(self) -> None:
        """Finish the file operations that have begun, and end the thread."""
        self._thread.shutdown(wait=True)

    def _journal(self, request: RequestId, file: int, size_bytes: int) -> StreamJournal:
        path = self._file_of(request)
        return StreamJournal(
            path, file, size_bytes, use=self.use, thread=self._thread, log=self._log
        )

    # --- in the thread -----------------------------------------------------------------------

    def _file_of(self, request: RequestId) -> Path:
        return self._path / f"{request}.stream"

    def _create(self, request: RequestId, data: bytes) -> int | None:
        path = self._file_of(request)
        file = None
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
            file = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _append(file, data)
        except OSError as error:
            self._log.warning("a stream has no file", request=request, error=str(error))
            if file is not None:
                path.unlink(missing_ok=True)
                os.close(file)
            return None
        return file

    def _claim(
        self, request: RequestId, owner: str
    ) -> tuple[int, int, StreamHead, EarlierAnswer] | None:
        file = _locked(self._file_of(request)) if _is_name(request) else None
        if file is None:
            return None
        try:
            head, answer, size_bytes = read_records(_whole(file))
            if head.owner == owner and _age_s(file) <= head.wait_s:
                os.ftruncate(file, size_bytes)  # the process may have died within a write
                _append(file, MOVED)
                return file, size_bytes + len(MOVED), head, answer
        except (OSError, BadMessage) as error:
            self._log.warning("a stream can't continue", request=request, error=str(error))
        os.close(file)
        return None

    def _is_held(self, request: RequestId, owner: str) -> bool:
        try:
            data = self._file_of(request).read_bytes() if _is_name(request) else b""
            return read_head(data).owner == owner
        except (OSError, BadMessage):
            return False

    def _orphans(self) -> list[tuple[RequestId, str]]:
        orphans: list[tuple[RequestId, str]] = []
        for path in self._path.glob("*.stream") if self._path.is_dir() else ():
            file = _locked(path, YOUNG_S)
            if file is None:
                continue
            age_s = _age_s(file)
            try:
                head, answer, _ = read_records(_whole(file))
                if age_s > head.wait_s:
                    path.unlink(missing_ok=True)
                elif answer.moves <= MOST_MOVES:
                    orphans.append((head.request, head.owner))
            except (OSError, BadMessage):
                if age_s > MOST_WAIT_S:
                    path.unlink(missing_ok=True)
            finally:
                os.close(file)
        return orphans


def _is_name(request: RequestId) -> bool:
    """Return whether a request id that a client sent can be the name of a file here."""
    return request.isascii() and request.replace("-", "").isalnum() and len(request) <= 200


async def _run(thread: ThreadPoolExecutor, act: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(thread, act)


def _append(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _age_s(file: int) -> float:
    """Return how many seconds ago a file was last written."""
    return time.time() - os.fstat(file).st_mtime


def _whole(file: int) -> bytes:
    """Return the content of a file, at most twice the size limit."""
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as reader:
        return reader.read(2 * FILE_BYTES)


def _locked(path: Path, least_age_s: float = 0.0) -> int | None:
    """Open and lock a file; None if it is gone, too young, or another process has it."""
    try:
        file = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        if _age_s(file) >= least_age_s:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:  # it was not deleted meanwhile
                return file
    except OSError:
        pass  # another process serves the stream
    os.close(file)
    return None
