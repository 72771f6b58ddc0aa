"""Talks to the disk: the ends of the log files of this node's processes.

Only what lies in the folder of logs under a process's name can be asked for; so many bytes of a
file are read at most, and a line is cut.
"""

from __future__ import annotations

from pathlib import Path

from bus.process.logs import end_of, process_of

MOST_LINES = 1000
TAIL_BYTES = 1 << 20
LINE_CHARACTERS = 4000


def logged_processes(folder: Path) -> dict[str, Path]:
    """Return the log files by their processes' names. Blocks."""
    found = sorted(folder.glob("*.log")) if folder.is_dir() else []
    return {process_of(path.name): path for path in found}


def log_tail(path: Path, lines: int) -> list[str]:
    """Return the last lines of a file, oldest first, as they stand; of a line that is still being
    written nothing. Blocks; raises OSError."""
    whole = end_of(path, TAIL_BYTES).split(b"\n")[:-1]
    texts = [line.decode(errors="replace") for line in whole[-lines:]] if lines else []
    return [text[:LINE_CHARACTERS] for text in texts]
