"""Talks to a hub and the disk: fetches the missing pieces of one listing, and verifies each whole
file.

Several threads each fetch one run (a range of pieces of a file) at a time. Another thread hashes
each file from its beginning as it grows, and the caller's thread reports progress. `files` and
`patience` decide.
"""

from __future__ import annotations

import errno
import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any

from bus.wire.messages.readings import PullPhase, PullState
from bus.wire.messages.weights import PIECE_BYTES
from worker.pulling.fetching.files import PieceRun, PullFiles
from worker.pulling.fetching.partial import Partial
from worker.pulling.fetching.ranges import RangeReader
from worker.pulling.listing import HubFile, HubListing, PullFailed
from worker.pulling.patience import Patience
from worker.transfer.download import ReceivedBytes

TELL_S = 0.25
HASH_BYTES_AT_ONCE = 8 << 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileHash:
    """The hash of a file's first `done_bytes`."""

    def __init__(self, file: HubFile) -> None:
        self.done_bytes = 0
        self._hash = hashlib.sha256()
        if file.kind == "git":
            self._hash = hashlib.sha1(f"blob {file.size_bytes}\0".encode(), usedforsecurity=False)

    def add(self, content: bytes) -> None:
        """Hash the next bytes of the file."""
        self._hash.update(content)
        self.done_bytes += len(content)

    def digest(self) -> str:
        """Return the hash of the bytes so far, in hexadecimal."""
        return self._hash.hexdigest()


class Fetch:
    """Fetches the pieces of `files` from a hub into a partial model. `url_of` returns the address
    of a file. `received` and `patience` are those of the whole pull."""

    def __init__(
        self,
        listing: HubListing,
        files: PullFiles,
        partial: Partial,
        url_of: Callable[[HubListing, HubFile], str],
        received: ReceivedBytes,
        patience: Patience,
    ) -> None:
        self._listing = listing
        self._files = files
        self._partial = partial
        self._url_of = url_of
        self._received = received
        self._patience = patience
        self._changed = threading.Condition()
        self._end: PullFailed | None = None

    def run(
        self,
        reader: RangeReader,
        connections: int,
        state_of: Callable[[PullPhase], PullState],
        tell: Callable[[PullState], None],
    ) -> None:
        """Fetch and verify everything with several threads, and `tell` the state of the pull until
        then. Raises PullFailed."""
        work: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
            (self._fetch_runs, (reader,))
        ] * connections
        threads = [
            threading.Thread(target=self._guarded, args=(act, given), daemon=True)
            for act, given in [*work, (self._hash_files, ())]
        ]
        for thread in threads:
            thread.start()
        self._wait(state_of, tell)
        for thread in threads:
            thread.join()

    def _wait(
        self, state_of: Callable[[PullPhase], PullState], tell: Callable[[PullState], None]
    ) -> None:
        """Report progress until all files are verified. Raises PullFailed."""
        files = self._files
        while True:
            with self._changed:
                now = time.monotonic()
                self._received.mark(now)
                if not files.landed:
                    self._end = self._end or self._patience.judge(now)
                self._end = self._end or files.refusal
                if self._end is not None:
                    self._changed.notify_all()
                    raise self._end
                if files.complete:
                    return
                phase: PullPhase = "checking" if files.landed else "fetching"
                state = state_of(phase)
            tell(state)
            with self._changed:
                if not files.complete and self._end is None:
                    self._changed.wait(TELL_S)

    # --- in threads ---

    def _guarded(self, act: Callable[..., None], given: tuple[Any, ...]) -> None:
        try:
            act(*given)
        except PullFailed as failure:
            self._give_up(failure)
        except OSError as error:
            self._give_up(disk_failure(error))
        except Exception as error:
            self._give_up(
                PullFailed("broken", f"an error in shoal ({type(error).__name__}): see the log")
            )
            raise

    def _give_up(self, failure: PullFailed) -> None:
        with self._changed:
            self._end = self._end or failure
            self._changed.notify_all()

    def _fetch_runs(self, reader: RangeReader) -> None:
        by_path = {file.path: file for file in self._listing.files}
        while (run := self._next_run()) is not None:
            runs = [run]
            try:
                self._fetch(reader, by_path[run.path], runs)
            except PullFailed as failure:
                with self._changed:
                    end = self._patience.failed(failure, time.monotonic())
                if end is not None:
                    raise end from None
            finally:
                with self._changed:
                    for piece_run in runs:
                        self._files.put_back(piece_run)
                    self._changed.notify_all()

    def _next_run(self) -> PieceRun | None:
        """Wait for the next run to fetch; None if everything is verified, or the pull failed."""
        with self._changed:
            while self._end is None and not self._files.complete:
                pause_s = self._patience.paused_until_at - time.monotonic()
                run = self._files.next() if pause_s <= 0 else None
                if run is not None:
                    return run
                self._changed.wait(TELL_S if pause_s <= 0 else min(pause_s, TELL_S))
            return None

    def _fetch(self, reader: RangeReader, file: HubFile, runs: list[PieceRun]) -> None:
        """Fetch the run in `runs`; if the hub answers with the whole file, a run that streams it is
        added. Raises PullFailed, OSError."""
        (run,), url = runs, self._url_of(self._listing, file)
        with reader.opened(url, file, run.begin, run.end) as answer:
            if (answer.begin, answer.end) != (run.begin, run.end) and not run.streams:
                with self._changed:
                    stream = self._files.stream(run)
                if stream is None:
                    return
                runs.append(stream)
            index, held = answer.begin // PIECE_BYTES, bytearray()
            for part in answer.parts():
                held += part
                left = file.size_bytes - index * PIECE_BYTES
                while held and len(held) >= (length := min(PIECE_BYTES, left)):
                    content = bytes(held[:length])
                    del held[:length]
                    if not self._take(file, index, content):
                        return
                    index, left = index + 1, left - length

    def _take(self, file: HubFile, index: int, content: bytes) -> bool:
        """Store an arrived piece. Return whether further pieces of its file are wanted."""
        with self._changed:
            if self._end is not None:
                return False
            wanted = self._files.wants(file.path, index)
        if not wanted:
            return True
        self._partial.write(file, index, content)
        with self._changed:
            if self._end is not None:
                return False
            self._files.take(file.path, index)
            self._patience.came(time.monotonic())
            self._received.total += len(content)
            self._changed.notify_all()
            return not self._files.has_all(file.path)

    def _hash_files(self) -> None:
        hashes: dict[str, FileHash] = {}
        while (file := self._next_to_hash(hashes)) is not None:
            file_hash = hashes.setdefault(file.path, FileHash(file))
            with self._changed:
                ready = self._files.hashable(file.path)
            with open(self._partial.path(file), "rb") as opened:
                opened.seek(file_hash.done_bytes)
                while file_hash.done_bytes < ready:
                    file_hash.add(
                        opened.read(min(HASH_BYTES_AT_ONCE, ready - file_hash.done_bytes))
                    )
            if file_hash.done_bytes == file.size_bytes:
                digest = hashes.pop(file.path).digest()
                self._partial.note_whole(file, is_right=digest == file.digest)
                with self._changed:
                    self._files.check(file.path, digest)
                    self._changed.notify_all()

    def _next_to_hash(self, hashes: dict[str, FileHash]) -> HubFile | None:
        """Wait for a file with bytes that are not hashed yet; None at the end."""
        with self._changed:
            while self._end is None and not self._files.complete:
                for file in self._files.unchecked():
                    ready, file_hash = self._files.hashable(file.path), hashes.get(file.path)
                    if (
                        ready > (file_hash.done_bytes if file_hash else 0)
                        or ready == file.size_bytes
                    ):
                        return file
                self._changed.wait(TELL_S)
            return None


def disk_failure(error: OSError) -> PullFailed:
    """Return the failure for an error of the disk; the files received so far stay."""
    why = f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
    if error.errno in NO_ROOM:
        text = (
            f"the disk is full: {why}; the files received so far are kept; free some "
            "space and pull again"
        )
        return PullFailed("disk_full", text)
    return PullFailed("broken", f"disk error on this node: {why}")
