"""The last events of the log that this process has applied, each in its form, in bounded memory.

Pure. Entries are in the log's order, each with its place: term and index. Where a snapshot took the
place of events, an entry of the kind `gap` stands for them; a log that gave way to another is
forgotten whole. Who goes on from a place that is not held is told so by a gap before all else.
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
from gateway.cluster.watch.event_form import GAP, EventTold, event_told, gap_told

MOST_EVENTS = 20_000
MOST_BYTES = 16 << 20
BESIDE_BYTES = 200
"""What an entry takes beside its text."""
BEGAN = "this process starts to follow the log here"
SKIPPED = "a snapshot replaced events that this process did not receive"
REPLACED = "another log replaced the one that this process followed"
DROPPED = "this process no longer has these events"
OTHER = "this log has another event at that place"
BEHIND = "this process has no event so late: it is behind, or another log replaced that one"


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where an event stands; a term that is None is any."""

    term: int | None
    index: int

    def __str__(self) -> str:
        """Return it as people and streams write it."""
        return f"{self.index}" if self.term is None else f"{self.term}:{self.index}"


@dataclass(frozen=True, slots=True)
class Entry:
    """An event in its form, as JSON on one line; or a gap."""

    place: LogPlace
    kind: str
    data: bytes


class EventRing:
    """The last events, `most` of them and `most_bytes` together at most."""

    def __init__(self, most: int = MOST_EVENTS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._before: LogPlace | None = None  # what the oldest entry follows, where that is known
        self._last: tuple[LogPlace, NodeId | None] | None = None
        self._state = ClusterState()

    def __len__(self) -> int:
        """Return how many entries there are."""
        return len(self._entries)

    @property
    def last(self) -> LogPlace | None:
        """Return the place up to which the log is known; None: nothing is."""
        return None if self._last is None else self._last[0]

    def moved(self, moves: Iterable[Move], now_s: float) -> None:
        """Take how the state has moved, by the wall's `now_s`."""
        for event, state in moves:
            place = LogPlace(state.term, state.index)
            if event is None:
                self._replaced(place, state.holder, now_s)
            else:
                self._add(place, event.body.kind, event_told(event, self._state, state))
            self._state, self._last = state, (place, state.holder)

    def latest(self, limit: int) -> list[Entry]:
        """Return the last entries, oldest first."""
        return self._from(max(0, len(self._entries) - limit), limit)

    def after(self, place: LogPlace | None, limit: int) -> list[Entry]:
        """Return the entries behind a place (None: the oldest of all), oldest first; before them a
        gap where that place is not held, or is one of another log."""
        last = self.last
        if place is None or last is None:
            return self._from(0, limit)
        if place.index > last.index:
            if place.term is None or last.term is None or place.term >= last.term:
                return [_gap(last, place.index, BEHIND)][:limit]
            return self._anew(place.index, OTHER, limit)
        at = bisect_right(self._entries, place.index, key=_index)
        known = self._entries[at - 1].place if at else self._before
        if known is None or place.index < known.index:
            return self._anew(place.index, DROPPED, limit)
        differ = place.term is not None and place.term != known.term
        if known.index == place.index and differ:
            return self._anew(place.index, OTHER, limit)
        return self._from(at, limit)

    def _anew(self, after: int, why: str, limit: int) -> list[Entry]:
        """Return all from the oldest on, behind a gap; without what it follows it begins with
        one."""
        gap = [] if self._before is None else [_gap(self._before, after, why)]
        return [*gap, *self._from(0, limit - len(gap))][:limit]

    def _from(self, at: int, limit: int) -> list[Entry]:
        return [self._entries[at] for at in range(at, min(at + limit, len(self._entries)))]

    def _replaced(self, place: LogPlace, holder: NodeId | None, now_s: float) -> None:
        """Note that a snapshot came; nothing was missed where it is of the last place."""
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

    def _add(self, place: LogPlace, kind: str, told: EventTold) -> None:
        entry = Entry(place, kind, _line(told))
        self._entries.append(entry)
        self._bytes += _size(entry)
        while len(self._entries) > self._most or self._bytes > self._most_bytes:
            gone = self._entries.popleft()
            self._bytes -= _size(gone)
            self._before = gone.place


def _gap(place: LogPlace, after: int, why: str) -> Entry:
    told = gap_told(place.index, place.term or 0, after, why)
    return Entry(place, GAP, _line(told))


def _line(told: EventTold) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode()


def _index(entry: Entry) -> int:
    return entry.place.index


def _size(entry: Entry) -> int:
    return len(entry.data) + BESIDE_BYTES
