"""Talks to standard error: writes log lines as JSON, or in readable form on a terminal. Talks to
the disk, too: reads the ends of log files, and notes the threads that an error ended.

A record is one line with node, process and the fields of the caller (request, generation, ...).
Prompt text must not be logged. The text of an exception may quote a prompt, so it must not be
logged either: `story_of` reports where the exception came from (decision 0061). If an error ends a
thread, the thread's work stops, while its process continues and looks healthy. So each process
notes such threads in the runtime folder, where telemetry finds them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

from bus.process.clock import wall
from bus.wire.errors import ShoalError

LEVELS = ("debug", "info", "warning", "error", "critical")
LOOK_S = 1.0
"""Interval between checks whether the settings have changed."""
_DEAD = ".threads"
"""Suffix of files in the runtime folder that list the threads of a process which an error ended."""
Field = str | int | float | bool | None


class Log:
    """A process's log. `bind` returns a log with more fixed fields."""

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
        self._least = [LEVELS.index(level)]  # shared with all bound logs
        self.readable = self._stream.isatty()

    def bind(self, **fields: Field) -> Log:
        """Return the same log with these fields on every line."""
        bound = copy.copy(self)
        bound._fixed = {**self._fixed, **fields}
        return bound

    def set_level(self, level: str) -> bool:
        """Set the log level of this log and all logs bound to it; return whether it changed."""
        before, self._least[0] = self._least[0], LEVELS.index(level)
        return before != self._least[0]

    def debug(self, message: str, **fields: Field) -> None:
        """Log something of interest to developers."""
        self._write("debug", message, fields)

    def info(self, message: str, **fields: Field) -> None:
        """Log something of interest to operators."""
        self._write("info", message, fields)

    def warning(self, message: str, **fields: Field) -> None:
        """Log a problem that was handled."""
        self._write("warning", message, fields)

    def error(self, message: str, **fields: Field) -> None:
        """Log a failure."""
        self._write("error", message, fields)

    def critical(self, message: str, **fields: Field) -> None:
        """Log a failure that an operator must repair."""
        self._write("critical", message, fields)

    def _write(self, level: str, message: str, fields: dict[str, Field]) -> None:
        if LEVELS.index(level) < self._least[0]:
            return
        if self.readable:
            extra = " ".join(f"{key}={value}" for key, value in fields.items())
            line = f"{level:8} {self._fixed['process']:12} {message} {extra}".rstrip()
        else:
            record = {"time": time_of(wall()), "level": level, "message": message}
            line = json.dumps({**record, **self._fixed, **fields}, default=str)
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            return


def time_of(at_s: float) -> str:
    """Return seconds since the epoch as ISO 8601, in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


def story_of(error: BaseException) -> str:
    """Return where an error came from: its type and the lines of code that it passed, preceded by
    those of the errors that caused it. The errors' own texts are left out, because they may quote a
    client's input; only the names of errors of the system, ZeroMQ or SQLite are included."""
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        parts.append("".join([*traceback.format_tb(current.__traceback__), _kind_of(current)]))
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    return "\nwhich caused:\n".join(reversed(parts))


def _kind_of(error: BaseException) -> str:
    kind = type(error)
    where = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    named = getattr(error, "strerror", None) or getattr(error, "sqlite_errorname", None)
    detail = f": {named}" if isinstance(named, str) else ""
    if isinstance(error, BaseExceptionGroup):
        members = cast(tuple[BaseException, ...], error.exceptions)  # pyright: ignore[reportUnknownMemberType]
        detail = "".join(f"\none of its errors: {story_of(member)}" for member in members)
    return f"{where}{kind.__qualname__}{detail}"


def log_strays(log: Log, note: Callable[[str], None] | None = None) -> None:
    """Log uncaught errors of the main thread, of other threads, and of destructors and callbacks.
    The log shows `story_of` the error; Python's own text is not written to standard error. `note`
    is called with the name of a thread that an error has ended, so that the node is reported as
    unhealthy."""

    def tell(message: str, error: BaseException | None, **fields: Field) -> None:
        log.critical(message, **fields, error="" if error is None else story_of(error))

    def raised(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> Any:
        """Log the error that ends the main thread."""
        if issubclass(kind, KeyboardInterrupt):
            return
        tell("stopped by an uncaught error", error)

    def raised_in_thread(given: threading.ExceptHookArgs) -> Any:
        """Log the error that ends a thread."""
        name = given.thread.name if given.thread is not None else ""
        if not issubclass(given.exc_type, SystemExit):
            tell("a thread was stopped by an uncaught error", given.exc_value, thread=name)
            if note is not None:
                note(name)

    sys.excepthook = raised
    threading.excepthook = raised_in_thread
    sys.unraisablehook = lambda given: tell("error in a destructor or callback", given.exc_value)


def death_note(folder: str, process: str) -> Callable[[str], None]:
    """Return a function that writes the name of an ended thread to a file of the calling process.
    It also works in a process forked from this one. An error of the disk is ignored."""
    stem = process.replace(":", "-")

    def note(thread: str) -> None:
        path = Path(folder) / f"{stem}.{os.getpid()}{_DEAD}"
        names = sorted({*(name for _, name in _noted(path)), thread})
        with contextlib.suppress(OSError):
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps({"process": process, "threads": names}))
            fresh.replace(path)

    return note


def dead_threads(folder: str, is_there: Callable[[int], bool]) -> tuple[tuple[str, str], ...]:
    """Return the ended threads, as (process, thread), that living processes noted in a runtime
    folder. Delete the notes of processes that have ended."""
    threads: list[tuple[str, str]] = []
    for path in sorted(Path(folder).glob(f"*{_DEAD}")):
        pid = path.name.split(".")[-2]
        if pid.isdecimal() and is_there(int(pid)):
            threads += _noted(path)
        else:
            path.unlink(missing_ok=True)
    return tuple(threads)


def _noted(path: Path) -> list[tuple[str, str]]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(path.read_bytes())
        return [(str(content["process"]), str(name)) for name in content["threads"]]
    return []


def stray_of_loop(log: Log) -> Callable[[Any, dict[str, Any]], None]:
    """Return an exception handler for an asyncio loop. It logs neither asyncio's own text, which
    quotes arguments of callbacks, nor the error's text."""

    def tell(_loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        message = str(context.get("message", "")).partition("(")[0].partition(" <")[0]
        story = story_of(error) if isinstance(error, BaseException) else ""
        log.error("error in a task that nothing waits for", where=message, error=story)

    return tell


def end_of(path: Path, most_bytes: int) -> bytes:
    """Return the end of a log file, from the beginning of a line on, `most_bytes` at most. Blocks.
    Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes))
        content = file.read(most_bytes)
    return content if size <= most_bytes else content.partition(b"\n")[2]


def process_of(file_name: str) -> str:
    """Return the process of a log file: `runner-03.log` belongs to `runner:03`."""
    stem = file_name.removesuffix(".log")
    head, _, tail = stem.rpartition("-")
    return f"{head}:{tail}" if head and tail.isdigit() else stem


def file_of(process: str) -> str:
    """Return the name of a process's log file."""
    return process.replace(":", "-") + ".log"


@dataclass(frozen=True, slots=True)
class LevelSource:
    """The source of a log level: the settings file, and a function that returns the level and the
    fault of the settings. The function raises ShoalError."""

    file: Path
    level_now: Callable[[], tuple[str, str]]


class LevelFollower:
    """Sets a log to the level in the settings. `look` applies the level if the settings file has
    changed since the last call."""

    def __init__(self, log: Log, source: LevelSource) -> None:
        self._log, self._source = log, source
        self._seen: tuple[int, int, int] | None = None

    def look(self) -> None:
        """Check the settings file, and set the level if the file has changed. A fault that appears
        after a change is logged once. A fault at the first check is not logged, because this
        process already reported it when it read its settings."""
        mark, before = _mark_of(self._source.file), self._seen
        if mark == before:
            return
        self._seen = mark
        try:
            level, trouble = self._source.level_now()
        except Exception as error:  # a settings file must not end a service's loop
            level, trouble = "", str(error) if isinstance(error, ShoalError) else repr(error)
        if trouble:
            if before is not None:
                self._log.warning(f"{trouble} (the log level does not change)")
        elif self._log.set_level(level):
            self._log.info("log level changed", level_now=level)


def follow_level(
    log: Log, source: LevelSource | None, every: Callable[[float, Callable[[], None]], object]
) -> None:
    """Keep a log, and all logs bound to it, at the level of `source`, checked each second by a
    timer of `every` (`Reactor.every`). None: the level is fixed."""
    if source is not None:
        follower = LevelFollower(log, source)
        follower.look()
        every(LOOK_S, follower.look)


def _mark_of(file: Path) -> tuple[int, int, int]:
    """Return a value that changes whenever the file changes; zeros for no file."""
    try:
        status = file.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


class CountedWarning:
    """A warning that may come with every received message. It is logged the 1st, 10th, 100th, ...
    time, with the count."""

    def __init__(self, log: Log, message: str) -> None:
        self._log = log
        self._message = message
        self.count = 0

    def add(self, **fields: Field) -> None:
        """Count the warning once more, and log it if its count is 1, 10, 100, ..."""
        self.count += 1
        if str(self.count).strip("0") == "1":
            self._log.warning(self._message, **fields, so_far=self.count)
