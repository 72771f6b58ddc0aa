"""Talks to the disk: reads the last lines of the log files of this node's processes.

A caller names a process; only the file of that process in the log folder is read. At most
`TAIL_BYTES` of a file are read, and each line is truncated.
"""

from __future__ import annotations

from pathlib import Path

from bus.process.logs import end_of, process_of

MOST_LINES = 1000
TAIL_BYTES = 1 << 20
LINE_CHARACTERS = 4000


def logged_processes(folder: Path) -> dict[str, Path]:
    """Return the log files, keyed by process name. Blocks."""
    files = sorted(folder.glob("*.log")) if folder.is_dir() else []
    return {process_of(path.name): path for path in files}


def log_tail(path: Path, lines: int) -> list[str]:
    """Return the last lines of a file, oldest first. A line that is still being written is left
    out. Blocks; raises OSError."""
    whole = end_of(path, TAIL_BYTES).split(b"\n")[:-1]
    texts = [line.decode(errors="replace") for line in whole[-lines:]] if lines else []
    return [text[:LINE_CHARACTERS] for text in texts]
