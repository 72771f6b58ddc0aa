"""Talks to the disk: the log of events, length-prefixed msgpack, with snapshots beside it.

`<folder>/events.log` holds records (`master.log.records`); the first is a snapshot of the state
before them. A torn tail (left by a crash during a write) is cut after the last whole record. A
damaged file is renamed, and a file with the records before the damage replaces it. The log counts
as `lost` until it is complete again, also over restarts.

When the log exceeds its limit, a new file that begins with a snapshot replaces it (written aside,
fsynced, renamed), and the old file goes to the archives. If the disk is full or nearly full, the
journal only counts events and writes nothing until the next start: it logs this once, nothing
crashes, and acknowledgements say `volatile`. It also logs once when there is space again; a leader
that ends in order then writes its whole log.
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
"""Number of appends between two checks of the free space."""


class Journal:
    """One candidate's log. `degraded`: new events are only counted, not written. `lost`: a part was
    damaged and the log is not known to be complete since."""

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
        """Open the journal for appending. Return the stored state and the events after it. Raises
        WrittenLater without touching the file."""
        data = self._content()
        records = read_records(data)
        if records.later:
            raise WrittenLater(_later_words(records, self._path))
        self.lost = records.lost or records.damage is not None
        if records.damage is not None:
            self._set_aside(data, records.damage, records.why)
            self.compact(reduce(apply, records.events, records.state))
        else:
            self._continue(records.good_bytes, len(records.events))
            if records.good_bytes < len(data):
                lost_bytes = len(data) - records.good_bytes
                self._log.warning(
                    "cut an incomplete record from the end of the journal", lost_bytes=lost_bytes
                )
            if records.good_bytes == 0:
                self._write(record_of_state(records.state, lost=self.lost))
        self._check_disk()
        if records.good_bytes and records.damage is None and records.protocol != PROTOCOL_MAX:
            # begun anew, so that the file names the version of all that is in it
            self._rotate(reduce(apply, records.events, records.state))
        self.archives.resume()
        return records.state, records.events

    def append(self, event: Event, *, state_after: ClusterState) -> None:
        """Write one event through to the operating system, in the order of the calls.

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
        """Begin a new file with a snapshot of `state`; the old content is dropped. When this
        returns, the new file survives a power cut."""
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
        """Record on disk that the log is complete again, with `state` at its end."""
        self.lost = False
        self.compact(state)

    def sync(self) -> None:
        """Write all appended events to disk. If that fails, later events are only counted."""
        if self._file is None or self.degraded:
            return
        try:
            self._file.sync()
        except OSError as error:
            self._degrade(str(error))

    def look(self, state: ClusterState) -> None:
        """If appends are only counted, log once when there is disk space again. If the file was
        removed, begin a new one with `state`, the state at the end of the log."""
        if self._file is not None and not self.degraded and not self.files.is_there(self._path):
            self._log.critical(
                "the journal file was removed; starting a new one with the present state",
                file=str(self._path),
            )
            with contextlib.suppress(OSError):
                self.files.make_folder(self.folder)
            self.compact(state)
        if self.degraded and not self._told_room and self._has_room():
            self._told_room = True
            self._log.critical(
                "there is disk space for the journal again; restart this node (`shoal down`, "
                "then `shoal up`) to write the whole journal",
                folder=str(self.folder),
            )

    def keep_whole(self, state: ClusterState) -> None:
        """If appends were only counted and the disk has space now, begin a new file with `state`,
        the state at the end of the log. So a node that ends in order loses nothing."""
        if self.degraded and self._has_room():
            self.degraded = False
            self.compact(state)

    def close(self) -> None:
        """Write all appended events to disk and close the file."""
        self.archives.finish()
        self.sync()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rotate(self, state: ClusterState) -> None:
        """Begin a new file with `state`, and archive the old one."""
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
                "the journal cannot be written; changes are only in memory. Free disk space, and "
                "do not restart `master` until the log says that there is disk space again",
                folder=str(self.folder),
                why=why,
            )

    def _check_disk(self) -> None:
        free = self.files.free_bytes(self.folder)
        if free < self._low_disk_bytes:
            self._degrade(
                f"{free >> 20} MiB of disk are free; {self._low_disk_bytes >> 20} MiB are needed"
            )

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
        """Open the existing file, cut it after its good records and append to it from then on."""
        try:
            self._file = self.files.open(self._path)
            self._file.cut(good_bytes)
        except OSError as error:
            self._degrade(str(error))
        self._bytes, self._records = good_bytes, records

    def _set_aside(self, data: bytes, damage: LostRange, why: str) -> None:
        """Give the damaged file a second name, and log which events are lost."""
        copy = self.folder / damage.file_name(crc32(data))
        try:
            with contextlib.suppress(FileExistsError):  # a crash came before the new file
                self.files.link(self._path, copy)
        except OSError as error:
            self._degrade(f"cannot keep a copy of the damaged file: {error}")
        self._log.critical(
            "the journal is damaged; repeat the changes of the lost events",
            lost=damage.text,
            why=why,
            kept=str(copy),
        )


def _later_words(records: Records, path: Path) -> str:
    written = "" if records.protocol is None else f" (protocol {records.protocol})"
    return (
        f"the journal was written by a newer version of shoal{written}; this version reads "
        f"protocol {PROTOCOL_MAX}. Install the newer version again, or give this node "
        f"another home. Nothing was changed in {path}. ({records.why})"
    )
