"""Talks to a hub and the disk: runs one pull, from reading the hub's listing to moving the finished
model into the models folder.

Several threads each fetch one run of a file at a time; one hashes each file from its beginning as
it grows; the caller's thread reports progress. `files` and `patience` decide.
"""

from __future__ import annotations

import errno
import hashlib
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bus.wire.messages.readings import PullPhase, PullState
from bus.wire.messages.weights import PIECE_BYTES
from worker.pulling.files import PieceRun, PullFiles
from worker.pulling.forecast import Shelving, forecast_of
from worker.pulling.hub import Hub
from worker.pulling.listing import HubFile, HubListing, PullFailed
from worker.pulling.order import HERE_ALREADY, PullOrder
from worker.pulling.partial import Partial, pulled_revision, sweep_partial
from worker.pulling.patience import Patience
from worker.pulling.ranges import RangeReader
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


class PullSession:
    """One pull. `tell` is called in the thread of `run`. An order with `holds` waits after its
    forecast until `goes` is set."""

    def __init__(
        self, order: PullOrder, tell: Callable[[PullState], None], goes: threading.Event
    ) -> None:
        self._order = order
        self._tell = tell
        self._goes = goes
        self._hub = Hub()
        self._patience = Patience(time.monotonic(), order.timing)
        self._received = ReceivedBytes()
        self._changed = threading.Condition()
        self._listing: HubListing | None = None
        self._files: PullFiles | None = None
        self._end: PullFailed | None = None
        self._read: dict[HubFile, bytes] = {}

    def run(self) -> PullState:
        """Run the pull until it is done or has failed; return its final state."""
        try:
            self._pull()
        except PullFailed as failure:
            return self._failed(failure)
        except OSError as error:
            return self._failed(disk_failure(error))
        note = HERE_ALREADY if self._order.here else ""
        return self._state("done").model_copy(update={"note": note})

    def _pull(self) -> None:
        order, models = self._order, Path(self._order.models)
        sweep_partial(models, time.time())
        listing = self._listing = self._list()
        if order.here:
            self._check_here(listing)
            return
        reader = RangeReader(
            order.model, listing.commit, self._hub.address, self._hub.headers(), order.connections
        )
        if order.holds:
            self._hold(listing, reader)
        partial = Partial(models, listing)
        have, checked = partial.open()
        self._files = files = PullFiles(listing, self._with_read(partial, have), checked)
        self._check_room(models, files)
        by_path = {file.path: file for file in listing.files}
        work: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
            (self._fetch_runs, (reader, partial, by_path))
        ] * order.connections
        threads = [
            threading.Thread(target=self._guarded, args=(act, given), daemon=True)
            for act, given in [*work, (self._hash_files, (partial,))]
        ]
        for thread in threads:
            thread.start()
        self._wait(files)
        for thread in threads:
            thread.join()
        reader.close()
        self._tell(self._state("publishing"))
        partial.publish()

    def _list(self) -> HubListing:
        while True:
            self._tell(self._state("listing"))
            try:
                listing = self._hub.list(self._order.model, self._order.revision)
            except PullFailed as failure:
                end = self._patience.failed(failure, time.monotonic())
                if end is not None:
                    raise end from None
            else:
                self._patience.came(time.monotonic())
                return listing
            while time.monotonic() < self._patience.paused_until_at:
                self._tell(self._state("listing"))
                time.sleep(TELL_S)

    def _hold(self, listing: HubListing, reader: RangeReader) -> None:
        """Report the forecast and wait to be resumed. Raises PullFailed, OSError."""
        order = self._order
        shelving = Shelving(Path(order.models), order.float32, order.kv)

        def read(file: HubFile) -> bytes:
            """Return the content of a small file. Raises PullFailed."""
            url = self._hub.url_of(listing, file.path)
            content = reader.read(url, file)
            hashed = FileHash(file)
            hashed.add(content)
            if hashed.digest() != file.digest:
                raise PullFailed(
                    "spoilt", f"{file.path} arrived with a hash that differs from the list"
                )
            self._read[file] = content
            return content

        forecast = forecast_of(listing, read, shelving)
        self._tell(self._state("listing").model_copy(update={"forecast": forecast}))
        self._goes.wait()
        self._patience.came(time.monotonic())

    def _with_read(self, partial: Partial, have: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Put files that were read while the pull was held into the partial model; return the
        pieces present afterwards. Raises OSError."""
        pieces = dict(have)
        for file, content in self._read.items():
            if 0 < len(content) <= PIECE_BYTES and not any(pieces[file.path]):
                partial.write(file, 0, content)
                pieces[file.path] = b"\1"
                self._received.total += len(content)
        return pieces

    def _check_here(self, listing: HubListing) -> None:
        """Raise PullFailed if the existing model is not at the requested commit."""
        here = pulled_revision(Path(self._order.here))
        if here == listing.commit:
            return
        origin = "from elsewhere" if here is None else f"at {here[:12]}"
        text = (
            f"{listing.model} is already here {origin} ({self._order.here}), not at "
            f"{listing.commit[:12]}; delete it first with `shoal rm {listing.model}`"
        )
        raise PullFailed("conflict", text)

    def _check_room(self, models: Path, files: PullFiles) -> None:
        free, lacking = shutil.disk_usage(models).free, files.total_bytes - files.done_bytes
        missing = lacking + self._order.margin_bytes - free
        if missing > 0:
            text = (
                f"not enough disk space at {models}: {missing:,} bytes short ({lacking:,} "
                f"to download, {self._order.margin_bytes:,} to stay free, {free:,} "
                "free)"
            )
            raise PullFailed("disk_full", text)

    def _wait(self, files: PullFiles) -> None:
        """Report progress until all files are verified. Raises PullFailed."""
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
                state = self._state(phase)
            self._tell(state)
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

    def _fetch_runs(
        self, reader: RangeReader, partial: Partial, by_path: dict[str, HubFile]
    ) -> None:
        while (run := self._next_run()) is not None:
            runs = [run]
            try:
                self._fetch(reader, partial, by_path[run.path], runs)
            except PullFailed as failure:
                with self._changed:
                    end = self._patience.failed(failure, time.monotonic())
                if end is not None:
                    raise end from None
            finally:
                with self._changed:
                    for piece_run in runs:
                        self._plan().put_back(piece_run)
                    self._changed.notify_all()

    def _next_run(self) -> PieceRun | None:
        """Wait for the next run to fetch; None if everything is verified, or the pull failed."""
        with self._changed:
            while self._end is None and not self._plan().complete:
                pause_s = self._patience.paused_until_at - time.monotonic()
                run = self._plan().next() if pause_s <= 0 else None
                if run is not None:
                    return run
                self._changed.wait(TELL_S if pause_s <= 0 else min(pause_s, TELL_S))
            return None

    def _fetch(
        self, reader: RangeReader, partial: Partial, file: HubFile, runs: list[PieceRun]
    ) -> None:
        """Fetch the run in `runs`; if the hub answers with the whole file, a run that streams it is
        added. Raises PullFailed, OSError."""
        assert self._listing is not None
        (run,), url = runs, self._hub.url_of(self._listing, file.path)
        with reader.opened(url, file, run.begin, run.end) as answer:
            if (answer.begin, answer.end) != (run.begin, run.end) and not run.streams:
                with self._changed:
                    stream = self._plan().stream(run)
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
                    if not self._take(partial, file, index, content):
                        return
                    index, left = index + 1, left - length

    def _take(self, partial: Partial, file: HubFile, index: int, content: bytes) -> bool:
        """Store an arrived piece; return whether more of its file is wanted."""
        with self._changed:
            if self._end is not None:
                return False
            wanted = self._plan().wants(file.path, index)
        if not wanted:
            return True
        partial.write(file, index, content)
        with self._changed:
            if self._end is not None:
                return False
            self._plan().take(file.path, index)
            self._patience.came(time.monotonic())
            self._received.total += len(content)
            self._changed.notify_all()
            return not self._plan().has_all(file.path)

    def _hash_files(self, partial: Partial) -> None:
        hashes: dict[str, FileHash] = {}
        while (file := self._next_to_hash(hashes)) is not None:
            file_hash = hashes.setdefault(file.path, FileHash(file))
            with self._changed:
                ready = self._plan().hashable(file.path)
            with open(partial.path(file), "rb") as opened:
                opened.seek(file_hash.done_bytes)
                while file_hash.done_bytes < ready:
                    file_hash.add(
                        opened.read(min(HASH_BYTES_AT_ONCE, ready - file_hash.done_bytes))
                    )
            if file_hash.done_bytes == file.size_bytes:
                digest = hashes.pop(file.path).digest()
                partial.note_whole(file, is_right=digest == file.digest)
                with self._changed:
                    self._plan().check(file.path, digest)
                    self._changed.notify_all()

    def _next_to_hash(self, hashes: dict[str, FileHash]) -> HubFile | None:
        """Wait for a file with bytes that are not hashed yet; None at the end."""
        with self._changed:
            while self._end is None and not self._plan().complete:
                for file in self._plan().unchecked():
                    ready, file_hash = self._plan().hashable(file.path), hashes.get(file.path)
                    if (
                        ready > (file_hash.done_bytes if file_hash else 0)
                        or ready == file.size_bytes
                    ):
                        return file
                self._changed.wait(TELL_S)
            return None

    # --- how far it is ---

    def _plan(self) -> PullFiles:
        assert self._files is not None
        return self._files

    def _failed(self, failure: PullFailed) -> PullState:
        return self._state("failed").model_copy(
            update={
                "reason": failure.reason,
                "message": failure.message,
                "retry_after_s": failure.retry_after_s,
                "note": "",
            }
        )

    def _state(self, phase: PullPhase) -> PullState:
        listing, files, now = self._listing, self._files, time.monotonic()
        pause_s = self._patience.paused_until_at - now
        last = self._patience.last
        waits = ""
        if last is not None and pause_s > 0:
            waits = f"waiting {math.ceil(pause_s)} s: {last.message}"
        return PullState(
            model=self._order.model,
            phase=phase,
            hub=self._hub.address,
            revision="" if listing is None else listing.commit,
            digest="" if listing is None else listing.digest,
            files=0 if listing is None else len(listing.files),
            done_bytes=0 if files is None else files.done_bytes,
            total_bytes=0 if listing is None else listing.total_bytes,
            received_bytes=self._received.total,
            bytes_per_s=self._received.per_s(now) if phase == "fetching" else 0.0,
            note=waits,
        )


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
