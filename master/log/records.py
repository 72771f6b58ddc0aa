"""The journal's file as bytes: its records, and what is the matter where they end too early.

Pure. A record is [4-byte length, 4-byte CRC-32, msgpack map], the map a snapshot (`state`, the
first of each file, with the `protocol` of what wrote the file; `lost` where the log before it was
not whole) or an `event`.

A bad record is a *torn tail*, which a crash in mid-write leaves, only where the file ends within
it: what was ever synced is in the file with its whole length, and a write that was cut off is the
beginning of a record, or zeros where the file system had not filled it in. Anything else is
*damage*: a record that is all there and does not match its checksum, one with good ones behind it,
one that is whole but for its length, bytes that begin no record. Then the log ends before it, and
what is behind is not read: it may follow from what was lost.

A record that matches its checksum and is not understood is no damage, where a later version may
have written the file: that is one of a higher protocol, or one that names none.
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
"""How the map of every record begins."""
_BEGINNING = re.compile(b"|".join(BEGINNINGS))


@dataclass(slots=True)
class Records:
    """What a journal's file holds: a state and the events after it, in its first `good_bytes`.

    `lost`: the log was damaged once, and has not been whole since. `damage` is what cannot be read
    behind them, None where nothing is there or a torn tail; `why` says what was seen. `protocol` is
    that of the version which began the file, None where it did not say. `later`: a later version
    wrote what is not understood."""

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
    """Return the record of an event."""
    return _record({"event": event.model_dump()})


def record_of_state(state: ClusterState, *, lost: bool) -> bytes:
    """Return the record that a file begins with; `lost`: the log before it is not whole."""
    marks = {"lost": True} if lost else {}
    return _record({"state": state.model_dump(), "protocol": PROTOCOL_MAX, **marks})


def read_records(data: bytes) -> Records:
    """Read a journal's file up to its end or to the first record that cannot be read."""
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
    """Return whether the bad record at `at` is no more than a write that was cut off."""
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
    """Return the body of the record at `at`; None where that is no good record."""
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
    """Yield the bodies of the good records behind the one at `at`."""
    for match in _BEGINNING.finditer(data, at + HEADER.size + 1):
        body = _body(data, match.start() - HEADER.size)
        if body is not None:
            yield body


def _is_whole(body: memoryview, checksum: int) -> bool:
    """Return whether some beginning of the body matches the checksum: then it is whole, and its
    length is wrong."""
    crc = 0
    for end in range(len(body)):
        crc = crc32(body[end : end + 1], crc)
        if crc == checksum:
            return True
    return False


def _lost(data: bytes, records: Records) -> LostRange:
    """Return which indexes are lost, as far as what lies behind still tells."""
    last: int | None = None
    for body in _behind(data, records.good_bytes):
        try:
            index = Event.model_validate(unpack(body)["event"]).index
        except (BadMessage, ValueError, KeyError, TypeError):
            continue
        last = max(index, last or 0)
    first = records.index + 1
    return LostRange(first, last if last is not None and last >= first else None)
