"""Talks to the log files: `shoal logs` shows the log of one process, or the logs of all processes
merged by time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import typer

from bus.process.clock import wall
from bus.process.logs import file_of, process_of
from bus.process.supervisor import Supervisor
from conf.settings import Settings
from gateway.cli.command import Invocation
from gateway.cli.output.errors import NOT_FOUND, CliError
from gateway.cli.output.log_lines import STYLES, LogLine, parse_line
from gateway.cli.output.terminal import Output

LOOK_S = 0.2
TAIL_BYTES = 1 << 20
QUIET_S = 5.0


def logs(
    invocation: Invocation,
    process: Annotated[
        str | None, typer.Argument(help="A process (`gateway`, `runner:00`); default: all.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines as they are written.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Number of lines, the latest ones.")
    ] = 40,
) -> None:
    """Show the logs of the node's processes. `--json` prints the lines as they are on disk."""
    settings, output = invocation.settings(), invocation.output
    readers = [_Reader(path) for path in _files(settings, process)]
    try:
        latest = _by_time(line for reader in readers for line in reader.last(lines))
        for line in latest[-lines:] if lines else []:
            _say(output, line)
        if follow:
            _follow(settings, output, readers, every=process is None)
    finally:
        for reader in readers:
            reader.close()


def _follow(settings: Settings, output: Output, readers: list[_Reader], *, every: bool) -> None:
    """Show new lines until the node is down. `every`: also show lines of log files that appear
    later."""
    supervisor = Supervisor(settings.endpoints.supervisor)
    while True:
        fresh = _by_time(line for reader in readers for line in reader.fresh())
        for line in fresh:
            _say(output, line)
        if fresh:
            continue
        if every:
            paths = {reader.path for reader in readers}
            readers += [_Reader(path) for path in _files(settings, None) if path not in paths]
        if not supervisor.is_up() and not _recent(readers):
            output.note("the node is down")
            return
        time.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class _Line:
    raw: str
    parsed: LogLine


@dataclass(slots=True)
class _Reader:
    """One log file. Its reader continues in the new file when the log is rotated (a new file gets
    the old name)."""

    path: Path
    _file: IO[bytes] | None = None
    _rest: bytes = b""

    def last(self, lines: int) -> list[_Line]:
        """Return the last `lines` lines, oldest first. The next call of `fresh` returns only lines
        after these."""
        self._file = self.path.open("rb")
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - TAIL_BYTES))
        split = self._split(self._file.read())
        return split[-lines:] if lines else []

    def fresh(self) -> list[_Line]:
        """Return the lines written since the last call, oldest first."""
        if self._file is None:
            return self.last(1000)
        split = self._split(self._file.read())
        with contextlib.suppress(FileNotFoundError):
            # supervisord renames a full file and opens a new one; the rest of the old one is read
            if os.stat(self.path).st_ino != os.fstat(self._file.fileno()).st_ino:
                self._file.close()
                self._file = self.path.open("rb")
                split += self._split(self._file.read())
        return split

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _split(self, data: bytes) -> list[_Line]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        texts = [line.decode(errors="replace") for line in whole]
        process = process_of(self.path.name)
        return [_Line(text, parse_line(text, process)) for text in texts if text.strip()]


def _by_time(lines: Iterable[_Line]) -> list[_Line]:
    return sorted(lines, key=lambda line: line.parsed.at or 0.0)


def _files(settings: Settings, process: str | None) -> list[Path]:
    folder = settings.paths.logs
    there = sorted(folder.glob("*.log")) if folder.is_dir() else []
    if process is None:
        if not there:
            text = f"no logs in {folder}: this node has never run"
            raise CliError(text, remedy="start it with `shoal up`", code=NOT_FOUND)
        return there
    path = folder / file_of(process)
    if path not in there:
        names = ", ".join(process_of(path.name) for path in there) or "none yet"
        raise CliError(f"no log of {process!r}", remedy=f"the logs are: {names}", code=NOT_FOUND)
    return [path]


def _recent(readers: list[_Reader]) -> bool:
    """Return whether a log was written within the last seconds. This is how a node is recognised
    that is starting or stopping, because it may have no supervisord."""
    times = [r.path.stat().st_mtime for r in readers if r.path.exists()]
    return bool(times) and wall() - max(times) < QUIET_S


def _say(output: Output, line: _Line) -> None:
    if output.as_json:
        output.write(line.raw + "\n")
        return
    output.styled(line.parsed.text(), STYLES.get(line.parsed.level, ""))
