"""Talks to the tap and to the log files: `shoal tap` and `shoal logs`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.markup import escape

from bus.clock import wall
from bus.processes import Supervisor
from bus.tap import Tapped, listen
from bus.topics import TABLE
from conf.settings import Settings
from gateway.cli.log_lines import STYLES, LogLine, file_of, parse_line, process_of
from gateway.cli.problems import NO_NODE, NOT_FOUND, Problem
from gateway.cli.screen import Screen
from gateway.cli.verb import Invocation, verb

LOOK_S = 0.2
TAIL_BYTES = 1 << 20
MAX_TEXT = 160


def register(app: typer.Typer) -> None:
    """Add `tap` and `logs`."""
    verb(app)(tap)
    verb(app)(logs)


def tap(
    invocation: Invocation,
    pattern: Annotated[str, typer.Argument(help="Topics, as a shell pattern: 'event.*'.")] = "*",
    raw: Annotated[
        bool, typer.Option("--raw", help="The bytes as they cross the wire, in hexadecimal.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many messages.")
    ] = None,
    for_s: Annotated[
        float | None, typer.Option("--for", min=0.0, help="End after so many seconds.")
    ] = None,
) -> None:
    """Listen to the bus of this node: events, readings, tokens, as they pass.

    Nothing is slowed by a tap; when it lags it misses messages. Tokens are published only while
    somebody taps `token.*`.
    """
    _check_pattern(pattern)
    settings, screen = invocation.settings(), invocation.screen
    if not Path(settings.endpoints.tap.removeprefix("ipc://")).exists():
        text = f"no node runs in {settings.paths.home}"
        raise Problem(text, remedy="`shoal up` starts one", code=NO_NODE)
    ends_at = None if for_s is None else time.monotonic() + for_s
    seen = 0
    screen.detail(f"listening at {settings.endpoints.tap}; Ctrl-C ends")
    with contextlib.closing(listen(settings.endpoints, pattern, patience_s=LOOK_S)) as tapped:
        for one in tapped:
            if one is not None:
                _show(screen, one, raw=raw)
                seen += 1
            if (count is not None and seen >= count) or _over(ends_at):
                return


def tapped_text(one: Tapped) -> str:
    """A message in a line: topic, who said it, and its fields."""
    if one.error is not None:
        return f"{one.topic}  not decoded: {one.error}"
    fields = json.dumps(one.fields, default=str, ensure_ascii=False)
    if len(fields) > MAX_TEXT:
        fields = fields[: MAX_TEXT - 3] + "..."
    return f"{one.topic}  {one.process}#{one.seq}  {fields}"


def _show(screen: Screen, one: Tapped, *, raw: bool) -> None:
    if raw:
        screen.write(f"{one.topic} {one.payload.hex()}\n")
    elif screen.as_json:
        screen.line(
            {
                "topic": one.topic,
                "node": one.node,
                "process": one.process,
                "boot": one.boot,
                "seq": one.seq,
                "message": one.fields,
                "error": one.error,
            }
        )
    else:
        screen.say(tapped_text(one))


def _check_pattern(pattern: str) -> None:
    """A pattern that no topic of the table can ever match is a slip of the finger."""
    fixed = pattern.split("*")[0].split("?")[0].split("[")[0]
    prefixes = [row.prefix for row in TABLE]
    if fixed and not any(p.startswith(fixed) or fixed.startswith(p) for p in prefixes):
        raise Problem(
            f"no topic begins with {fixed!r}",
            remedy=f"topics begin with {', '.join(prefixes)}",
            code=NOT_FOUND,
        )


def _over(ends_at: float | None) -> bool:
    return ends_at is not None and time.monotonic() >= ends_at


def logs(
    invocation: Invocation,
    process: Annotated[
        str | None, typer.Argument(help="A process (`gateway`, `runner:00`); all without.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The last so many.")] = 40,
) -> None:
    """Read what the processes have logged; `--json` gives the lines as they are on disk."""
    settings, screen = invocation.settings(), invocation.screen
    files = _files(settings, process)
    readers = [_Reader(path) for path in files]
    found = sorted(
        (line for reader in readers for line in reader.last(lines)),
        key=lambda line: line.parsed.at or 0.0,
    )
    for line in found[-lines:] if lines else []:
        _say(screen, line)
    ends = Supervisor(settings.endpoints.supervisor)
    while follow:
        fresh = [line for reader in readers for line in reader.fresh()]
        for line in sorted(fresh, key=lambda line: line.parsed.at or 0.0):
            _say(screen, line)
        if not fresh:
            if process is None:
                known = {reader.path for reader in readers}
                readers += [_Reader(p) for p in _files(settings, None) if p not in known]
            if not settings.paths.logs.exists() or not (ends.is_up() or _recent(readers)):
                screen.note("the node is down")
                return
            time.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class _Line:
    raw: str
    parsed: LogLine


@dataclass(slots=True)
class _Reader:
    """One log file, followed across rotation (a new file under the old name)."""

    path: Path
    _file: IO[bytes] | None = None
    _rest: bytes = b""
    _process: str = field(init=False)

    def __post_init__(self) -> None:
        self._process = process_of(self.path.name)

    def last(self, lines: int) -> list[_Line]:
        """The last lines there are; what comes later is `fresh`."""
        self._file = self.path.open("rb")
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - TAIL_BYTES))
        found = self._split(self._file.read())
        return found[-lines:] if lines else []

    def fresh(self) -> list[_Line]:
        """What was written since."""
        if self._file is None:
            return self.last(1000)
        found = self._split(self._file.read())
        with contextlib.suppress(FileNotFoundError):
            # supervisord renames the full file and opens a new one; what was left is read.
            if os.stat(self.path).st_ino != os.fstat(self._file.fileno()).st_ino:
                self._file.close()
                self._file = self.path.open("rb")
                found += self._split(self._file.read())
        return found

    def _split(self, data: bytes) -> list[_Line]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        texts = [line.decode(errors="replace") for line in whole]
        return [_Line(text, parse_line(text, self._process)) for text in texts if text.strip()]


def _files(settings: Settings, process: str | None) -> list[Path]:
    folder = settings.paths.logs
    there = sorted(folder.glob("*.log")) if folder.is_dir() else []
    if process is None:
        if not there:
            text = f"no logs in {folder}: this node has not been up yet"
            raise Problem(text, remedy="`shoal up` starts it", code=NOT_FOUND)
        return there
    path = folder / file_of(process)
    if path not in there:
        names = ", ".join(process_of(one.name) for one in there) or "none yet"
        raise Problem(f"no log of {process!r}", remedy=f"there are: {names}", code=NOT_FOUND)
    return [path]


def _recent(readers: list[_Reader]) -> bool:
    """Whether anything was written within the last seconds: a node that is starting or ending
    has no supervisord to ask."""
    times = [r.path.stat().st_mtime for r in readers if r.path.exists()]
    return bool(times) and wall() - max(times) < 5.0


def _say(screen: Screen, line: _Line) -> None:
    if screen.as_json:
        screen.write(line.raw + "\n")
        return
    text, style = escape(line.parsed.text()), STYLES.get(line.parsed.level, "")
    screen.out.print(text, style=style or None)
