"""The last events of the log that this process has applied, in bounded memory.

Pure. Entries are in the log's order, and each has its log position (term and index). An entry of
kind `gap` stands for events that a snapshot replaced. If another log replaces this one, all entries
are dropped. A reader that resumes from a position outside the ring receives a gap first.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from bus.replica.mirror import Move
from bus.replica.state import ClusterState
from bus.wire.ids import NodeId
from gateway.view.watch.event_form import GAP, EventTold, event_told, gap_told

MOST_EVENTS = 20_000
MOST_BYTES = 16 << 20
BESIDE_BYTES = 200
"""Estimated memory of an entry in addition to its text, in bytes."""
BEGAN = "this process starts to follow the log here"
SKIPPED = "a snapshot replaced events that this process did not receive"
REPLACED = "another log replaced the log that this process followed"
DROPPED = "this process no longer has these events"
OTHER = "this log has another event at that position"
BEHIND = (
    "this process has no event at that position yet: it is behind, "
    "or another log replaced the old one"
)


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The position of an event in the log. If `term` is None, the index may be of any term."""

    term: int | None
    index: int

    def __str__(self) -> str:
        """Return the form for people and streams: `term:index` or `index`."""
        return f"{self.index}" if self.term is None else f"{self.term}:{self.index}"


@dataclass(frozen=True, slots=True)
class Entry:
    """An event as one line of JSON, or a gap."""

    place: LogPlace
    kind: str
    data: bytes


class EventRing:
    """The last events: at most `most` of them, with at most `most_bytes` in total."""

    def __init__(self, most: int = MOST_EVENTS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._before: LogPlace | None = None  # place before the oldest entry, if known
        self._last: tuple[LogPlace, NodeId | None] | None = None
        self._state = ClusterState()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> LogPlace | None:
        """Return the log position of the last event that this process has applied; None before the
        first event."""
        return None if self._last is None else self._last[0]

    def moved(self, moves: Iterable[Move], now_s: float) -> None:
        """Add the latest changes of the mirrored state. `now_s` is wall time."""
        for event, state in moves:
            place = LogPlace(state.term, state.index)
            if event is None:
                self._replaced(place, state.holder, now_s)
            else:
                self._add(place, event.body.kind, event_told(event, self._state, state))
            self._state, self._last = state, (place, state.holder)

    def latest(self, limit: int) -> list[Entry]:
        """Return the last `limit` entries, oldest first."""
        return self._from(max(0, len(self._entries) - limit), limit)

    def after(self, place: LogPlace | None, limit: int) -> list[Entry]:
        """Return the entries after a log position, oldest first (None: from the oldest on). If the
        ring lacks the position, or another log replaced it, the first entry is a gap."""
        last = self.last
        if place is None or last is None:
            return self._from(0, limit)
        if place.index > last.index:
            if place.term is None or last.term is None or place.term >= last.term:
                return [_gap(last, place.index, BEHIND)][:limit]
            return self._anew(place.index, OTHER, limit)
        at = bisect_right(self._entries, place.index, key=_index)
        before = self._entries[at - 1].place if at else self._before
        if before is None or place.index < before.index:
            return self._anew(place.index, DROPPED, limit)
        differ = place.term is not None and place.term != before.term
        if before.index == place.index and differ:
            return self._anew(place.index, OTHER, limit)
        return self._from(at, limit)

    def _anew(self, after: int, why: str, limit: int) -> list[Entry]:
        """Return a gap, then the entries from the oldest on. If the place before the oldest entry
        is unknown, the oldest entry itself is a gap, so no other gap is added."""
        gap = [] if self._before is None else [_gap(self._before, after, why)]
        return [*gap, *self._from(0, limit - len(gap))][:limit]

    def _from(self, at: int, limit: int) -> list[Entry]:
        return [self._entries[at] for at in range(at, min(at + limit, len(self._entries)))]

    def _replaced(self, place: LogPlace, holder: NodeId | None, now_s: float) -> None:
        """Add a gap for a snapshot that replaced events. If the snapshot ends at the last event
        that this process has applied, no event is missing and no gap is added."""
        if self._last == (place, holder):
            return
        last = self.last
        if last is None and place.index == 0:
            self._before = place
            return
        is_later = last is not None and place.index > last.index
        if not is_later:
            self._entries.clear()
            self._bytes, self._before = 0, None
        after = last.index if last is not None and is_later else None
        why = BEGAN if last is None else SKIPPED if is_later else REPLACED
        self._add(place, GAP, gap_told(place.index, place.term or 0, after, why, now_s))

    def _add(self, place: LogPlace, kind: str, event: EventTold) -> None:
        entry = Entry(place, kind, _line(event))
        self._entries.append(entry)
        self._bytes += _size(entry)
        while len(self._entries) > self._most or self._bytes > self._most_bytes:
            gone = self._entries.popleft()
            self._bytes -= _size(gone)
            self._before = gone.place


def _gap(place: LogPlace, after: int, why: str) -> Entry:
    event = gap_told(place.index, place.term or 0, after, why)
    return Entry(place, GAP, _line(event))


def _line(event: EventTold) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


def _index(entry: Entry) -> int:
    return entry.place.index


def _size(entry: Entry) -> int:
    return len(entry.data) + BESIDE_BYTES
