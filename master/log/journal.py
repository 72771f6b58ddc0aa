"""Talks to the disk: the log of events, length-prefixed msgpack, with snapshots beside it.

`<folder>/events.log` holds records [4-byte length, 4-byte CRC-32, msgpack]; the first is a
snapshot of the state before them. A torn tail (a crash in mid-write) is cut at the last whole
record. When the log passes its bound, a new file that begins with a snapshot takes its place
(written aside, fsynced, renamed), and the old one goes to the archives. With the disk full or
nearly so the journal degrades to counting only until the next start: it says so once, nothing
crashes, and what is acknowledged then is `volatile`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, cast
from zlib import crc32

from bus.process.logs import Log
from bus.replica.state import ClusterState
from bus.wire.codec import pack, unpack
from bus.wire.errors import BadMessage
from bus.wire.messages.events import Event
from master.log.archives import Archives
from master.log.files import DISK_FILES, Files, OpenFile

HEADER = struct.Struct("<II")
MAX_LOG_BYTES = 64 << 20
MAX_RECORDS = 20_000
LOW_DISK_BYTES = 2 << 30
CHECK_EVERY = 1_024
"""The free space is looked at once in so many appends."""


class Journal:
    """One candidate's log. `degraded` says that appends are only counted."""

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
        self.degraded = False
        self.appended = 0
        self._log = log
        self._max_records = max_records
        self._low_disk_bytes = low_disk_bytes
        self._path = folder / "events.log"
        self._files = files
        self._file: OpenFile | None = None
        self._bytes = 0
        self._records = 0
        self.archives = archives or Archives(folder / "archives", log)
        files.make_folder(folder)

    def open(self) -> tuple[ClusterState, list[Event]]:
        """Return what is kept, a state and the events after it, and be ready to append."""
        state, events, good_bytes = self._read()
        try:
            self._file = self._files.open(self._path)
            self._file.cut(good_bytes)
        except OSError as error:
            self._degrade(str(error))
        self._bytes, self._records = good_bytes, len(events)
        if good_bytes == 0:
            self._write(_snapshot_record(state))
        self._check_disk()
        self.archives.resume()
        return state, events

    def append(self, event: Event, *, state_after: ClusterState) -> None:
        """Write one event through to the operating system; order is that of the calls.

        `state_after` begins the next file when this one is full.
        """
        self.appended += 1
        if self.appended % CHECK_EVERY == 0:
            self._check_disk()
        if self.degraded:
            return
        self._write(_record({"event": event.model_dump()}))
        self._records += 1
        if self._bytes > MAX_LOG_BYTES or self._records > self._max_records:
            self.archives.take(self._path, f"events-{state_after.term:06d}-{event.index:012d}")
            self.compact(state_after)

    def compact(self, state: ClusterState) -> None:
        """Begin a new file with a snapshot of `state`; what was in the old one is gone. When
        this returns it survives a power cut."""
        if self.degraded:
            return
        fresh = self._path.with_suffix(".new")
        record = _snapshot_record(state)
        try:
            file = self._files.create(fresh, 0o600)
            try:
                file.write(record)
                file.sync()
                self._files.rename(fresh, self._path)
                self._files.sync_folder(self.folder)
            except OSError:
                file.close()
                raise
        except OSError as error:
            self._degrade(str(error))
            return
        if self._file is not None:
            self._file.close()
        self._file, self._bytes, self._records = file, len(record), 0

    def sync(self) -> None:
        """Force what was appended to the disk; where that fails, it only counts from here on."""
        if self._file is None or self.degraded:
            return
        try:
            self._file.sync()
        except OSError as error:
            self._degrade(str(error))

    def close(self) -> None:
        """Sync and close."""
        self.archives.finish()
        self.sync()
        if self._file is not None:
            self._file.close()
            self._file = None

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
            self._log.critical(
                "the journal only counts from here on: free some disk space and restart `master`",
                folder=str(self.folder),
                why=why,
            )

    def _check_disk(self) -> None:
        free = self._files.free_bytes(self.folder)
        if free < self._low_disk_bytes:
            self._degrade(f"{free >> 20} MiB free, {self._low_disk_bytes >> 20} MiB wanted")

    def _read(self) -> tuple[ClusterState, list[Event], int]:
        state, events, good = ClusterState(), list[Event](), 0
        try:
            data = self._files.read(self._path)
        except FileNotFoundError:
            return state, events, good
        while good + HEADER.size <= len(data):
            length, checksum = HEADER.unpack_from(data, good)
            body = data[good + HEADER.size : good + HEADER.size + length]
            if len(body) != length or crc32(body) != checksum:
                break
            try:
                record = cast(dict[str, Any], unpack(body))
                if "state" in record:
                    state, events = ClusterState.model_validate(record["state"]), []
                else:
                    events.append(Event.model_validate(record["event"]))
            except (BadMessage, ValueError, KeyError) as error:
                self._log.error("journal ends at an unreadable record", error=str(error)[:200])
                break
            good += HEADER.size + length
        if good < len(data):
            self._log.warning("journal had a torn tail", lost_bytes=len(data) - good)
        return state, events, good


def _record(value: dict[str, Any]) -> bytes:
    body = pack(value)
    return HEADER.pack(len(body), crc32(body)) + body


def _snapshot_record(state: ClusterState) -> bytes:
    return _record({"state": state.model_dump()})
