"""Talks to the disk: the log of events, length-prefixed msgpack, with snapshots beside it.

`<folder>/events.log` holds records (`master.log.records`); the first is a snapshot of the state
before them. A torn tail (a crash in mid-write) is cut at the last whole record. A file that is
damaged is kept aside, one that begins with what precedes the damage takes its place, and the log
counts as `lost` until it is whole again, over restarts too. When the log passes its bound, a new
file that begins with a snapshot takes its place (written aside, fsynced, renamed), and the old one
goes to the archives. With the disk full or nearly so the journal degrades to counting only until
the next start: it says so once, nothing crashes, and what is acknowledged then is `volatile`. Once
there is room it says that, too, and a leader that ends in order writes its log whole.
"""

from __future__ import annotations

import contextlib
from functools import reduce
from pathlib import Path
from zlib import crc32

from bus.process.logs import Log
from bus.replica.lost_range import LostRange
from bus.replica.state import ClusterState, apply
from bus.wire.errors import WrittenLater
from bus.wire.messages.events import Event
from bus.wire.messages.wire import PROTOCOL_MAX
from master.log.archives import Archives
from master.log.files import DISK_FILES, Files, OpenFile
from master.log.records import Records, read_records, record_of_event, record_of_state

MAX_LOG_BYTES = 64 << 20
MAX_RECORDS = 20_000
LOW_DISK_BYTES = 2 << 30
CHECK_EVERY = 1_024
"""The free space is looked at once in so many appends."""


class Journal:
    """One candidate's log. `degraded` says that appends are only counted, `lost` that something of
    it was damaged and it is not known to be whole since."""

    def __init__(
        self,
        folder: Path,
        log: Log,
        *,
        max_records: int = MAX_RECORDS,
        low_disk_bytes: int = LOW_DISK_BYTES,
        files: Files = DISK_FILES,
        archives: Archives | None = None,
    ) -> None:
        self.folder = folder
        self.degraded = self.lost = self._told_room = False
        self.appended = 0
        self._log = log
        self._max_records = max_records
        self._low_disk_bytes = low_disk_bytes
        self._path = folder / "events.log"
        self.files = files
        self._file: OpenFile | None = None
        self._bytes = 0
        self._records = 0
        self.archives = archives or Archives(folder / "archives", log)
        files.make_folder(folder)

    def open(self) -> tuple[ClusterState, list[Event]]:
        """Return what is kept, a state and the events after it, and be ready to append. Raises
        WrittenLater, and then has touched nothing."""
        data = self._content()
        found = read_records(data)
        if found.later:
            raise WrittenLater(_later_words(found, self._path))
        self.lost = found.lost or found.damage is not None
        if found.damage is not None:
            self._set_aside(data, found.damage, found.why)
            self.compact(reduce(apply, found.events, found.state))
        else:
            self._continue(found.good_bytes, len(found.events))
            if found.good_bytes < len(data):
                lost_bytes = len(data) - found.good_bytes
                self._log.warning("journal had a torn tail", lost_bytes=lost_bytes)
            if found.good_bytes == 0:
                self._write(record_of_state(found.state, lost=self.lost))
        self._check_disk()
        if found.good_bytes and found.damage is None and found.protocol != PROTOCOL_MAX:
            # begun anew, so that the file names the version of all that is in it
            self._rotate(reduce(apply, found.events, found.state))
        self.archives.resume()
        return found.state, found.events

    def append(self, event: Event, *, state_after: ClusterState) -> None:
        """Write one event through to the operating system; order is that of the calls.

        `state_after` begins the next file when this one is full.
        """
        self.appended += 1
        if self.appended % CHECK_EVERY == 0:
            self._check_disk()
        if self.degraded:
            return
        self._write(record_of_event(event))
        self._records += 1
        if self._bytes > MAX_LOG_BYTES or self._records > self._max_records:
            self._rotate(state_after)

    def compact(self, state: ClusterState) -> None:
        """Begin a new file with a snapshot of `state`; what was in the old one is gone. When
        this returns it survives a power cut."""
        if self.degraded:
            return
        fresh = self._path.with_suffix(".new")
        record = record_of_state(state, lost=self.lost)
        try:
            file = self.files.create(fresh, 0o600)
            try:
                file.write(record)
                file.sync()
                self.files.rename(fresh, self._path)
                self.files.sync_folder(self.folder)
            except OSError:
                file.close()
                raise
        except OSError as error:
            self._degrade(str(error))
            return
        if self._file is not None:
            self._file.close()
        self._file, self._bytes, self._records = file, len(record), 0

    def mended(self, state: ClusterState) -> None:
        """Note that the log is whole again, behind which is `state`."""
        self.lost = False
        self.compact(state)

    def sync(self) -> None:
        """Force what was appended to the disk; where that fails, it only counts from here on."""
        if self._file is None or self.degraded:
            return
        try:
            self._file.sync()
        except OSError as error:
            self._degrade(str(error))

    def look(self, state: ClusterState) -> None:
        """Say once that there is room again, where appends are only counted. Where the file was
        removed begin a new one with `state`, the end of the log."""
        if self._file is not None and not self.degraded and not self.files.is_there(self._path):
            self._log.critical(
                "the journal's file was removed; a new one begins with the state as it is now",
                file=str(self._path),
            )
            with contextlib.suppress(OSError):
                self.files.make_folder(self.folder)
            self.compact(state)
        if self.degraded and not self._told_room and self._has_room():
            self._told_room = True
            self._log.critical(
                "there is room again for the journal: take this node down in order (`shoal down`, "
                "then `shoal up`); its journal is written whole then",
                folder=str(self.folder),
            )

    def keep_whole(self, state: ClusterState) -> None:
        """Begin a new file with `state`, the end of the log, where appends were only counted: then
        a node that ends in order loses nothing, if there is room."""
        if self.degraded and self._has_room():
            self.degraded = False
            self.compact(state)

    def close(self) -> None:
        """Sync and close."""
        self.archives.finish()
        self.sync()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rotate(self, state: ClusterState) -> None:
        """Begin a new file with `state`, and keep the old one in the archives."""
        if not self.degraded:
            self.archives.take(self._path, f"events-{state.term:06d}-{state.index:012d}")
            self.compact(state)

    def _write(self, record: bytes) -> None:
        if self._file is None or self.degraded:
            return
        try:
            self._file.write(record)
        except OSError as error:
            self._file.cut(self._bytes)
            self._degrade(str(error))
            return
        self._bytes += len(record)

    def _degrade(self, why: str) -> None:
        if not self.degraded:
            self.degraded = True
            self._told_room = False
            self._log.critical(
                "the journal only counts from here on, and changes are in memory alone: free some "
                "disk space, and do not restart `master` before the log says that there is room",
                folder=str(self.folder),
                why=why,
            )

    def _check_disk(self) -> None:
        free = self.files.free_bytes(self.folder)
        if free < self._low_disk_bytes:
            self._degrade(f"{free >> 20} MiB free, {self._low_disk_bytes >> 20} MiB wanted")

    def _has_room(self) -> bool:
        with contextlib.suppress(OSError):
            return self.files.free_bytes(self.folder) >= self._low_disk_bytes
        return False

    def _content(self) -> bytes:
        try:
            return self.files.read(self._path)
        except FileNotFoundError:
            return b""

    def _continue(self, good_bytes: int, records: int) -> None:
        """Go on behind what is good of the file that is there."""
        try:
            self._file = self.files.open(self._path)
            self._file.cut(good_bytes)
        except OSError as error:
            self._degrade(str(error))
        self._bytes, self._records = good_bytes, records

    def _set_aside(self, data: bytes, damage: LostRange, why: str) -> None:
        """Give the damaged file a second name, under which it stays, and say what is lost."""
        kept = self.folder / damage.file_name(crc32(data))
        try:
            with contextlib.suppress(FileExistsError):  # a crash came before the new file
                self.files.link(self._path, kept)
        except OSError as error:
            self._degrade(f"the damaged file could not be kept aside: {error}")
        self._log.critical(
            "the journal is damaged: do again what was changed in the events that are lost",
            lost=damage.text,
            why=why,
            kept=str(kept),
        )


def _later_words(found: Records, path: Path) -> str:
    written = "" if found.protocol is None else f" (protocol {found.protocol})"
    return (
        f"the journal was written by a later version of shoal{written}; this version reads "
        f"protocol {PROTOCOL_MAX} and stays out: install that version again, or give this node "
        f"another home. Nothing was changed in {path}. ({found.why})"
    )
