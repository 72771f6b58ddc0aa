"""What of the log files is ahead of a place in them, and each line as it is sent.

Pure. The files of one process, older ones before newer ones, are one run of bytes: supervisord
begins a new file wherever a write of the process ends, also within a line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class SentUpTo:
    """How far a process's log has been sent: `offset` bytes of the file with this inode number."""

    file: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Bytes of a file, from `start` to before `end`."""

    file: int
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Return how many there are."""
        return self.end - self.start


def ahead(files: Sequence[tuple[int, int]], place: SentUpTo) -> list[LogSpan]:
    """Return what is ahead of a place, oldest first, of files (inode number, bytes), oldest first.

    Where the place's file is gone it is all that there is; where it has become shorter, all of it.
    """
    numbers = [number for number, _ in files]
    if place.file not in numbers:
        return [LogSpan(number, 0, size) for number, size in files]
    (number, size), *rest = files[numbers.index(place.file) :]
    start = place.offset if place.offset <= size else 0
    return [LogSpan(number, start, size), *(LogSpan(number, 0, size) for number, size in rest)]


def moved(spans: Sequence[LogSpan], count: int) -> SentUpTo:
    """Return the place so many bytes on from the beginning of the spans, of which there is one at
    least."""
    for span in spans[:-1]:
        if count <= span.size_bytes:
            return SentUpTo(span.file, span.start + count)
        count -= span.size_bytes
    return SentUpTo(spans[-1].file, spans[-1].start + count)


def whole_lines(content: bytes, most_bytes: int, *, is_cut: bool) -> list[bytes]:
    """Return the first whole lines of some bytes, with their ends: one, and others while they are
    `most_bytes` together. Where the bytes have no end of a line they are one if they are cut: a
    line that is longer than what is read at once."""
    ended, newline, _ = content.rpartition(b"\n")
    if not newline:
        return [content] if is_cut else []
    found: list[bytes] = []
    total = 0
    for line in ended.split(b"\n"):
        total += len(line) + 1
        if found and total > most_bytes:
            break
        found.append(line + b"\n")
    return found


def as_sent(line: bytes, node: str, process: str, read_at: str) -> bytes:
    """Return a line as JSON that says who wrote it; b"" for an empty one.

    One that is no JSON object, a library's own, goes as the message of one, of the time `read_at`
    (ISO 8601).
    """
    text = line.strip()
    if not text:
        return b""
    try:
        told = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        told = None
    whose = {"node": node, "process": process}
    if not isinstance(told, dict):
        words = text.decode(errors="replace")
        told = {"time": read_at, "level": "info", "message": words}
    elif whose.keys() <= told.keys():
        return text
    return json.dumps({**whose, **cast(dict[str, Any], told)}).encode()


def _refuse(name: str) -> None:
    """Refuse a number that only Python's JSON has."""
    raise ValueError(name)
