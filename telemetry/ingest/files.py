"""Talks to the disk: what the processes have logged, in the files that supervisord keeps."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from telemetry.ingest.lines import LogSpan, SentUpTo, ahead, moved, whole_lines

PIECE_BYTES = 64 << 10
"""What is read of a process at once, and the longest line that stays one."""
MOST_BEHIND_BYTES = 16 << 20
"""Of one process: what is further behind is passed over, before its file goes."""
COUNTED_BYTES = 1 << 20
"""What is read at once of what is passed over."""
BACKUPS = 9
"""Older files of a process, at most; supervisord keeps three."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Lines of a process, in their order, and the place after them."""

    lines: list[bytes]
    place: SentUpTo


@dataclass(frozen=True, slots=True)
class Passed:
    """How many lines of a process are passed over, and the place after them. `is_torn`: a file went
    before it was read, and its lines are not counted."""

    lines: int
    place: SentUpTo
    is_torn: bool = False


def log_names(folder: Path) -> list[str]:
    """Return the names of the log files that are written now."""
    return sorted(path.name for path in folder.glob("*.log"))


def first_place(path: Path, most_bytes: int | None = None) -> SentUpTo | None:
    """Return the beginning of a log file, of the first line in its last `most_bytes` where that is
    given; None where there is no file. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        found = os.fstat(file.fileno())
        if most_bytes is None or found.st_size <= most_bytes:
            return SentUpTo(found.st_ino, 0)
        start = found.st_size - most_bytes
        content = os.pread(file.fileno(), most_bytes, start)
        return SentUpTo(found.st_ino, start + content.find(b"\n") + 1)
    return None


def is_news(path: Path, place: SentUpTo) -> bool:
    """Return whether something was written behind a place."""
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_ino, found.st_size) != (place.file, place.offset)


def take(path: Path, place: SentUpTo, most_bytes: int) -> Taken | None:
    """Return the next lines of a process behind a place: one, and others while they are
    `most_bytes` together; None where no line is whole yet. `path` is the file that is written now.
    Raises OSError."""
    with _opened(path) as files:
        spans = ahead(_sizes(files), place)
        content = _read(files, spans, 0, PIECE_BYTES)
        lines = whole_lines(content, most_bytes, is_cut=len(content) == PIECE_BYTES)
        return Taken(lines, moved(spans, sum(map(len, lines)))) if lines else None


def pass_over(path: Path, place: SentUpTo, most_bytes: int = MOST_BEHIND_BYTES) -> Passed | None:
    """Return the lines of a process that are to be passed over, so that no more than `most_bytes`
    are ahead; None for none. Raises OSError."""
    with _opened(path) as files:
        spans = ahead(_sizes(files), place)
        is_torn = bool(files) and place.file not in files
        too_many = sum(span.size_bytes for span in spans) - most_bytes
        if too_many <= 0:
            return Passed(0, moved(spans, 0), is_torn) if is_torn else None
        lines = at = 0
        while piece := _read(files, spans, at, COUNTED_BYTES):
            end = piece.find(b"\n", max(0, too_many - at - 1)) + 1
            lines += piece.count(b"\n", 0, end or len(piece))
            at += end or len(piece)
            if end:
                break
        return Passed(lines, moved(spans, at), is_torn)


@contextlib.contextmanager
def _opened(path: Path) -> Generator[Mapping[int, int]]:
    """Open the files of a process, oldest first: descriptors by inode numbers.

    They are opened newest first, so that one that is renamed meanwhile is met twice, not missed.
    """
    found: dict[int, int] = {}
    try:
        for one in (
            path,
            *(path.with_name(f"{path.name}.{count + 1}") for count in range(BACKUPS)),
        ):
            with contextlib.suppress(FileNotFoundError):
                file = os.open(one, os.O_RDONLY | os.O_CLOEXEC)
                number = os.fstat(file).st_ino
                if number in found:
                    os.close(file)
                else:
                    found[number] = file
        yield dict(reversed(found.items()))
    finally:
        for file in found.values():
            os.close(file)


def _sizes(files: Mapping[int, int]) -> list[tuple[int, int]]:
    return [(number, os.fstat(file).st_size) for number, file in files.items()]


def _read(files: Mapping[int, int], spans: list[LogSpan], at: int, count: int) -> bytes:
    """Return so many bytes of the spans, from `at` of them on, fewer at their end."""
    parts: list[bytes] = []
    for span in spans:
        if at < span.size_bytes and count > 0:
            part = os.pread(files[span.file], min(count, span.size_bytes - at), span.start + at)
            parts.append(part)
            count -= len(part)
        at = max(0, at - span.size_bytes)
    return b"".join(parts)
