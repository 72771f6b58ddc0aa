"""The records in the journal's file, and the reason if the file ends too early.

Pure. A record is [4-byte length, 4-byte CRC-32, msgpack map]. The map is a snapshot or an `event`.
The first record of each file is a snapshot: `state`, the `protocol` of the version that wrote it,
and `lost` if the log before it was incomplete.

A bad record is a *torn tail*, left by a crash during a write, only if the file ends within it.
Synced records always have their full length in the file. An interrupted write leaves the beginning
of a record, or zeros that the file system had not filled in yet. Anything else is *damage*: a full
record with a wrong checksum, a bad record before good ones, a record with a wrong length, or bytes
that begin no record. Then the log ends before the damage. Later records are not read, because they
may depend on lost ones.

If a later version of shoal may have written the file, an unknown record with a good checksum is not
damage. A later version may have written it if the file names a higher protocol than ours, or no
protocol.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast
from zlib import crc32

from bus.replica.lost_range import LostRange
from bus.replica.state import ClusterState
from bus.wire.codec import pack, unpack
from bus.wire.errors import BadMessage
from bus.wire.messages.events import Event
from bus.wire.messages.wire import PROTOCOL_MAX

HEADER = struct.Struct("<II")
BEGINNINGS = (b"\x81\xa5event", b"\x81\xa5state", b"\x82\xa5state", b"\x83\xa5state")
"""The first bytes of each kind of record."""
_BEGINNING = re.compile(b"|".join(BEGINNINGS))


@dataclass(slots=True)
class Records:
    """The content of a journal's file: a state and the events after it, in its first `good_bytes`.
    `lost`: the log was damaged once, and has not been complete since. `damage` is the unreadable
    range after the good bytes, None if there is none or only a torn tail; `why` is the reason.
    `protocol` is that of the version that began the file, if known. `later`: a later version wrote
    records that this version does not know."""

    state: ClusterState = field(default_factory=ClusterState)
    events: list[Event] = field(default_factory=list[Event])
    good_bytes: int = 0
    lost: bool = False
    damage: LostRange | None = None
    protocol: int | None = None
    later: bool = False
    why: str = ""

    @property
    def index(self) -> int:
        """Return the index of the last event."""
        return self.events[-1].index if self.events else self.state.index


def record_of_event(event: Event) -> bytes:
    """Return the packed record of an event, with its header."""
    return _record({"event": event.model_dump()})


def record_of_state(state: ClusterState, *, lost: bool) -> bytes:
    """Return the first record of a file; `lost`: the log before it is incomplete."""
    marks = {"lost": True} if lost else {}
    return _record({"state": state.model_dump(), "protocol": PROTOCOL_MAX, **marks})


def read_records(data: bytes) -> Records:
    """Read a journal's file up to its end or to the first unreadable record."""
    records = Records()
    while records.good_bytes < len(data):
        body = _body(data, records.good_bytes)
        if body is None:
            if not is_torn(data, records.good_bytes):
                records.why = "a record does not match its checksum"
            break
        try:
            _take(records, body)
        except (BadMessage, ValueError, KeyError, TypeError) as error:
            records.why = f"a record cannot be decoded: {str(error)[:200]}"
            records.later = records.protocol is None or records.protocol > PROTOCOL_MAX
            break
        records.good_bytes += HEADER.size + len(body)
    if records.why and not records.later:
        records.damage = _lost(data, records)
    return records


def is_torn(data: bytes, at: int) -> bool:
    """Return whether the bad record at `at` is only an interrupted write."""
    rest = memoryview(data)[at:]
    if not any(rest):
        return True
    if any(_behind(data, at)):
        return False
    if len(rest) < HEADER.size:
        return True
    length, checksum = HEADER.unpack_from(rest)
    body = rest[HEADER.size :]
    begins = any(begin.startswith(bytes(body[: len(begin)])) for begin in BEGINNINGS)
    return length > len(body) and begins and not _is_whole(body, checksum)


def _record(value: dict[str, Any]) -> bytes:
    body = pack(value)
    return HEADER.pack(len(body), crc32(body)) + body


def _body(data: bytes, at: int) -> bytes | None:
    """Return the body of the record at `at`; None if the record is bad."""
    if at + HEADER.size > len(data):
        return None
    length, checksum = HEADER.unpack_from(data, at)
    body = data[at + HEADER.size : at + HEADER.size + length]
    return body if len(body) == length > 0 and crc32(body) == checksum else None


def _take(records: Records, body: bytes) -> None:
    record = cast(dict[str, Any], unpack(body))
    if "state" in record:
        protocol = record.get("protocol")
        records.protocol = protocol if isinstance(protocol, int) else None
        records.state, records.events = ClusterState.model_validate(record["state"]), []
        records.lost = bool(record.get("lost", False))
    else:
        records.events.append(Event.model_validate(record["event"]))


def _behind(data: bytes, at: int) -> Iterator[bytes]:
    """Yield the bodies of the good records that follow the bad record at `at`."""
    for match in _BEGINNING.finditer(data, at + HEADER.size + 1):
        body = _body(data, match.start() - HEADER.size)
        if body is not None:
            yield body


def _is_whole(body: memoryview, checksum: int) -> bool:
    """Return whether the beginning of the body matches the checksum. Then only the length in the
    header is wrong."""
    crc = 0
    for end in range(len(body)):
        crc = crc32(body[end : end + 1], crc)
        if crc == checksum:
            return True
    return False


def _lost(data: bytes, records: Records) -> LostRange:
    """Return the range of lost indexes. Its end is known only if later records are readable."""
    last: int | None = None
    for body in _behind(data, records.good_bytes):
        try:
            index = Event.model_validate(unpack(body)["event"]).index
        except (BadMessage, ValueError, KeyError, TypeError):
            continue
        last = max(index, last or 0)
    first = records.index + 1
    return LostRange(first, last if last is not None and last >= first else None)
