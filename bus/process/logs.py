"""Talks to standard error: structured JSON lines, or readable ones on a terminal; to the disk: the
ends of the files that they go to, and which threads ended by an error.

One line per record, with node, process and the fields that the caller gives (request,
generation, ...). Prompt text has no place here, and so none has what an exception says: `story_of`
tells where it came from (decision 0061). A thread that ends so takes its work with it while its
process goes on and looks healthy: each process notes such threads in the runtime folder, where
telemetry finds them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import threading
import time
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
"""Between looks at whether the settings have changed."""
_DEAD = ".threads"
"""In the runtime folder: which threads of a process have ended by an error."""
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
        self._least = [LEVELS.index(level)]  # one for all that are bound to this log
        self.readable = self._stream.isatty()

    def bind(self, **fields: Field) -> Log:
        """Return the same log with these fields on every line."""
        bound = copy.copy(self)
        bound._fixed = {**self._fixed, **fields}
        return bound

    def set_level(self, level: str) -> bool:
        """Log from a level on, in every log that is bound to this one; return whether that is
        new."""
        before, self._least[0] = self._least[0], LEVELS.index(level)
        return before != self._least[0]

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
        if LEVELS.index(level) < self._least[0]:
            return
        if self.readable:
            extra = " ".join(f"{key}={value}" for key, value in fields.items())
            line = f"{level:8} {self._fixed['process']:12} {message} {extra}".rstrip()
        else:
            said = {"time": time_of(wall()), "level": level, "message": message}
            line = json.dumps({**said, **self._fixed, **fields}, default=str)
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            return


def time_of(at_s: float) -> str:
    """Return seconds since the epoch as ISO 8601 has them, in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


def story_of(error: BaseException) -> str:
    """Return where an error came from: its type and the lines of code that it passed, after those
    of the errors that it came of. What errors say is left out, for that may quote what a client
    sent; only what the system, ZeroMQ or SQLite calls it is told."""
    told: list[str] = []
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        told.append("".join([*traceback.format_tb(found.__traceback__), _kind_of(found)]))
        hidden = found.__suppress_context__
        found = found.__cause__ or (None if hidden else found.__context__)
    return "\nof which came:\n".join(reversed(told))


def _kind_of(error: BaseException) -> str:
    kind = type(error)
    where = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    named = getattr(error, "strerror", None) or getattr(error, "sqlite_errorname", None)
    said = f": {named}" if isinstance(named, str) else ""
    if isinstance(error, BaseExceptionGroup):
        members = cast(tuple[BaseException, ...], error.exceptions)  # pyright: ignore[reportUnknownMemberType]
        said = "".join(f"\nof its members: {story_of(one)}" for one in members)
    return f"{where}{kind.__qualname__}{said}"


def log_strays(log: Log, note: Callable[[str], None] | None = None) -> None:
    """Have what is raised where no code of ours catches it logged as a story, in place of Python's
    own words on standard error: in the main thread, in others, in what cannot raise. `note` takes
    the name of a thread that ended so: it is a health problem from then on."""

    def tell(message: str, error: BaseException | None, **fields: Field) -> None:
        """Log one."""
        log.critical(message, **fields, error="" if error is None else story_of(error))

    def raised(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> Any:
        """Tell of the main thread, which ends."""
        if issubclass(kind, KeyboardInterrupt):
            return
        tell("stopped by an uncaught error", error)

    def raised_in_thread(given: threading.ExceptHookArgs) -> Any:
        """Tell of a thread, which ends."""
        name = given.thread.name if given.thread is not None else ""
        if not issubclass(given.exc_type, SystemExit):
            tell("a thread was stopped by an uncaught error", given.exc_value, thread=name)
            if note is not None:
                note(name)

    sys.excepthook = raised
    threading.excepthook = raised_in_thread
    sys.unraisablehook = lambda given: tell("error in a destructor or callback", given.exc_value)


def death_note(folder: str, process: str) -> Callable[[str], None]:
    """Return what notes the end of a thread of the process that calls it, also of one that was
    forked from this; a disk that fails notes nothing."""
    stem = process.replace(":", "-")

    def note(thread: str) -> None:
        """Note one."""
        path = Path(folder) / f"{stem}.{os.getpid()}{_DEAD}"
        names = sorted({*(one for _, one in _noted(path)), thread})
        with contextlib.suppress(OSError):
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps({"process": process, "threads": names}))
            fresh.replace(path)

    return note


def dead_threads(folder: str, is_there: Callable[[int], bool]) -> tuple[tuple[str, str], ...]:
    """Return the threads, (process, thread), that were noted in a runtime folder by processes that
    live; what others noted is removed."""
    found: list[tuple[str, str]] = []
    for path in sorted(Path(folder).glob(f"*{_DEAD}")):
        pid = path.name.split(".")[-2]
        if pid.isdecimal() and is_there(int(pid)):
            found += _noted(path)
        else:
            path.unlink(missing_ok=True)
    return tuple(found)


def _noted(path: Path) -> list[tuple[str, str]]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_bytes())
        return [(str(found["process"]), str(one)) for one in found["threads"]]
    return []


def stray_of_loop(log: Log) -> Callable[[Any, dict[str, Any]], None]:
    """Return what logs the strays of an asyncio loop: what asyncio says of one quotes the values
    that a callback was given, and what the error says."""

    def tell(_loop: Any, context: dict[str, Any]) -> None:
        """Log one."""
        error = context.get("exception")
        said = str(context.get("message", "")).partition("(")[0].partition(" <")[0]
        told = story_of(error) if isinstance(error, BaseException) else ""
        log.error("error in a task that nothing waits for", where=said, error=told)

    return tell


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


@dataclass(frozen=True, slots=True)
class LevelSource:
    """Where a log level stands: the file of the settings, and what reads them: the level, and what
    is wrong with the file. Raises ShoalError."""

    file: Path
    level_now: Callable[[], tuple[str, str]]


class LevelFollower:
    """Has a log keep to the level that the settings say: `look` takes it where their file has
    changed since the look before."""

    def __init__(self, log: Log, source: LevelSource) -> None:
        self._log, self._source = log, source
        self._seen: tuple[int, int, int] | None = None

    def look(self) -> None:
        """Look at the file. What is wrong with it since it was changed is logged, once; what was
        wrong at the first look was told when this process read its settings."""
        mark, before = _mark_of(self._source.file), self._seen
        if mark == before:
            return
        self._seen = mark
        try:
            level, trouble = self._source.level_now()
        except ShoalError as error:
            level, trouble = "", str(error)
        if trouble:
            if before is not None:
                self._log.warning(f"{trouble} (the log level does not change)")
        elif self._log.set_level(level):
            self._log.info("log level changed", level_now=level)

    def go_on(self) -> None:
        """Look every second for as long as this process lives."""
        while True:
            self.look()
            time.sleep(LOOK_S)


def follow_level(log: Log, source: LevelSource | None) -> None:
    """Have a log, and all that are bound to it, keep to the level of `source`, in a thread of its
    own; None: it stays as it is."""
    if source is not None:
        follower = LevelFollower(log, source)
        threading.Thread(target=follower.go_on, name="log-level", daemon=True).start()


def _mark_of(file: Path) -> tuple[int, int, int]:
    """Return what tells a file from what it was before; zeros for none."""
    try:
        found = file.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


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
