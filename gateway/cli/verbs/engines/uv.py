"""Talks to uv: makes a virtual environment, pins packages with hashes, and installs the pins.

uv runs as a child process, within a deadline that all its steps share.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from bus.process.installation import command_to_add
from gateway.cli.output.errors import FAILED, CliError

KEPT_LINES = 25
ENDS_S = 5.0
"""How long uv may take to end after SIGTERM."""


@dataclass(frozen=True, slots=True)
class PackageSources:
    """Where packages come from; by default uv's own configuration decides. Without `build` only
    wheels are used, because building a package runs its code, and the packages that a build needs
    are not pinned."""

    index: Annotated[
        list[str] | None,
        typer.Option("--index", metavar="URL", help="Package index, before the usual one."),
    ] = None
    find_links: Annotated[
        list[Path] | None,
        typer.Option("--find-links", metavar="DIR", help="Folder with packages."),
    ] = None
    no_index: Annotated[
        bool, typer.Option("--no-index", help="Use only the folders of --find-links.")
    ] = False

    build: Annotated[
        bool,
        typer.Option("--build", help="Build packages that have no wheel, which runs their code."),
    ] = False

    def words(self) -> list[str]:
        """Return uv's options."""
        indexes = [word for url in self.index or () for word in ("--index", url)]
        folders = [
            word
            for folder in self.find_links or ()
            for word in ("--find-links", str(folder.expanduser().resolve()))
        ]
        flags = (("--no-index", self.no_index), ("--no-build", not self.build))
        return [*indexes, *folders, *(flag for flag, is_set in flags if is_set)]


def find_uv() -> str:
    """Return the path of uv: on PATH, else beside shoal's Python. Raises CliError."""
    beside = Path(sys.executable).with_name("uv")
    path = shutil.which("uv") or (str(beside) if os.access(beside, os.X_OK) else None)
    if path is None:
        remedy = (
            f"install uv: `{command_to_add('uv')}`, `brew install uv`, or as on "
            "https://docs.astral.sh/uv/; then run this again"
        )
        raise CliError("uv, which makes the environments, is not installed", remedy=remedy)
    return path


class Uv:
    """Runs uv in `folder`, which also has uv's cache. All runs together have `within_s` seconds.
    `show` gets each line of the output. uv inherits the lock file `lock_fd`, so the lock is held
    until uv has ended, even if this process dies."""

    def __init__(
        self,
        folder: Path,
        within_s: float,
        show: Callable[[str], None],
        *,
        lock_fd: int,
        offline: bool,
    ) -> None:
        self._program = find_uv()
        self._folder = folder
        self._within_s = within_s
        self._ends_at = monotonic() + within_s
        self._show = show
        self._lock_fd = lock_fd
        self._shared = ["--cache-dir", str(folder / ".cache"), "--no-python-downloads"]
        self._shared += ["--offline"] if offline else []

    def make(self, venv: Path, python: str) -> None:
        """Make a virtual environment without packages. Raises CliError."""
        remedy = "`uv python install VERSION` installs another Python"
        words = ["venv", "--no-project", "--python", python, str(venv)]
        self._run(f"cannot make an environment with Python {python}", remedy, words)

    def pin(self, packages: Sequence[str], venv: Path, lock: Path, sources: Sequence[str]) -> None:
        """Write `packages` and all that they need to `lock`, with versions and hashes. Raises
        CliError."""
        words = ["pip", "compile", "--quiet", "--generate-hashes", "--no-annotate", "--no-header"]
        words += ["--python", str(venv / "bin" / "python"), *sources]
        words += ["--output-file", str(lock), "-"]
        remedy = "check names, versions and sources (--index, --find-links); --build allows builds"
        self._run("these packages cannot be resolved", remedy, words, "\n".join(packages))

    def install(self, lock: Path, venv: Path, sources: Sequence[str]) -> None:
        """Install the pins of `lock`; each file must have one of its hashes. Raises CliError."""
        words = ["pip", "install", "--require-hashes", "--python", str(venv / "bin" / "python")]
        words += [*sources, "-r", str(lock)]
        remedy = "nothing was changed; what was downloaded is used by the next try"
        self._run("the packages cannot be installed", remedy, words)

    def _run(self, trouble: str, remedy: str, words: Sequence[str], text: str = "") -> None:
        lines = deque[str](maxlen=KEPT_LINES)
        late = threading.Event()
        with subprocess.Popen(
            [self._program, *words, *self._shared],
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=(self._lock_fd,),
        ) as process:
            timer = threading.Timer(self._ends_at - monotonic(), _end_late, (process, late))
            timer.daemon = True
            timer.start()
            try:
                assert process.stdin is not None and process.stdout is not None, (
                    "uv was started without pipes"
                )
                with process.stdin as pipe:
                    pipe.write(text)
                for line in process.stdout:
                    lines.append(line.rstrip())
                    self._show(line.strip())
                code = process.wait()
            finally:
                timer.cancel()
                _end(process)
        if late.is_set():
            message = f"not finished within {self._within_s:g} s"
            raise CliError(message, remedy="allow more time with --within SECONDS", code=FAILED)
        if code:
            raise CliError(trouble, remedy=remedy, details="\n".join(lines), code=FAILED)


def _end_late(process: subprocess.Popen[str], late: threading.Event) -> None:
    late.set()
    _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End uv, and return when it is gone."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
