"""Talks to standard error: structured JSON lines, or readable ones on a terminal; to the disk: the
ends of the files that they go to.

One line per record, with node, process and the fields that the caller gives (request,
generation, ...). Prompt text has no place here.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import TextIO

from bus.process.clock import wall

LEVELS = ("debug", "info", "warning", "error", "critical")
Field = str | int | float | bool | None


class Log:
    """A process's log. `bind` gives one with more fixed fields."""

    def __init__(
        self,
        *,
        node: str,
        process: str,
        level: str = "info",
        stream: TextIO | None = None,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._fixed: dict[str, Field] = {"node": node, "process": process}
        self._level = LEVELS.index(level)
        self.readable = self._stream.isatty()

    def bind(self, **fields: Field) -> Log:
        """Return the same log with these fields on every line."""
        bound = copy.copy(self)
        bound._fixed = {**self._fixed, **fields}
        return bound

    def debug(self, message: str, **fields: Field) -> None:
        """Log what developers may want to know."""
        self._write("debug", message, fields)

    def info(self, message: str, **fields: Field) -> None:
        """Log what an operator may want to know."""
        self._write("info", message, fields)

    def warning(self, message: str, **fields: Field) -> None:
        """Log what is off, and was coped with."""
        self._write("warning", message, fields)

    def error(self, message: str, **fields: Field) -> None:
        """Log what failed."""
        self._write("error", message, fields)

    def critical(self, message: str, **fields: Field) -> None:
        """Log what failed and an operator has to mend."""
        self._write("critical", message, fields)

    def _write(self, level: str, message: str, fields: dict[str, Field]) -> None:
        if LEVELS.index(level) < self._level:
            return
        if self.readable:
            extra = " ".join(f"{key}={value}" for key, value in fields.items())
            line = f"{level:8} {self._fixed['process']:12} {message} {extra}".rstrip()
        else:
            said = {"at": round(wall(), 3), "level": level, "message": message}
            line = json.dumps({**said, **self._fixed, **fields}, default=str)
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            return


def end_of(path: Path, most_bytes: int) -> bytes:
    """Return the end of a log file, from the beginning of a line on, `most_bytes` at most. Blocks;
    raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes))
        content = file.read(most_bytes)
    return content if size <= most_bytes else content.partition(b"\n")[2]


def process_of(file_name: str) -> str:
    """Return the process whose log a file is: `runner-03.log` is `runner:03`'s."""
    stem = file_name.removesuffix(".log")
    head, _, tail = stem.rpartition("-")
    return f"{head}:{tail}" if head and tail.isdigit() else stem


def file_of(process: str) -> str:
    """Return the name of a process's log file."""
    return process.replace(":", "-") + ".log"


class CountedWarning:
    """A warning that may come with every message that arrives: it is logged at the 1st, 10th,
    100th, ... time, with how often it came."""

    def __init__(self, log: Log, message: str) -> None:
        self._log = log
        self._message = message
        self.count = 0

    def add(self, **fields: Field) -> None:
        """Count one more, and log it where that is due."""
        self.count += 1
        if str(self.count).strip("0") == "1":
            self._log.warning(self._message, **fields, so_far=self.count)
