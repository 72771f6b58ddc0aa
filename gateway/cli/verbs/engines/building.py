"""Talks to the disk: builds, replaces and deletes environments of packages.

A build gets a folder of its own, and `environment.json` puts it in force when it is complete. A
lock file lets one command work at a time. uv's cache lies beside the environments until one is
complete. So an interrupted download resumes, and nothing stays on the disk twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bus.process.clock import wall
from bus.process.installation import (
    LOCK,
    MANIFEST,
    VENV,
    Environment,
    environment_in,
    write_manifest,
)
from gateway.cli.node.locks import lock_holder
from gateway.cli.output.errors import REFUSED, CliError
from gateway.cli.verbs.engines.uv import Uv

_PIN = re.compile(
    r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*(==\s*[^\s;\\]+|@ )", re.MULTILINE
)
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Order:
    """An environment to build: from `packages`, or from the text `lock`
    with pins. `python`: a version or a path. `sources`: uv's options."""

    name: str
    packages: tuple[str, ...]
    lock: str
    python: str
    sources: tuple[str, ...]


@contextlib.contextmanager
def alone(root: Path) -> Generator[int]:
    """Hold the lock of all environments. Yields its file descriptor; a child process that inherits
    it holds the lock too. Raises CliError if another command holds it."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = root / ".lock"
    with open(file, "a+") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "wait until it ends, or stop it; then run this again"
            text = f"another `shoal engine` (process {lock_holder(file) or '?'}) is at work"
            raise CliError(text, remedy=remedy, code=REFUSED) from None
        opened.truncate(0)
        opened.write(f"{os.getpid()}\n")
        opened.flush()
        yield opened.fileno()


def build(root: Path, order: Order, uv: Uv, show: Callable[[str], None]) -> Environment:
    """Build an environment, and put it in force. If it fails, an earlier environment of this name
    stays. Needs the lock. Raises CliError."""
    folder = root / order.name
    before = environment_in(root, order.name)
    _delete_others(folder, before)
    made = folder / secrets.token_hex(4)
    made.mkdir(mode=0o700, parents=True)
    try:
        show("making the environment")
        uv.make(made / VENV, order.python)
        show("choosing versions")
        lock = made / LOCK
        if order.packages:
            uv.pin(order.packages, made / VENV, lock, order.sources)
        else:
            lock.write_text(order.lock)
        show("installing")
        uv.install(lock, made / VENV, order.sources)
        text = lock.read_text()
        environment = Environment(
            order.name,
            folder,
            made.name,
            _pinned(order.packages, text),
            len(list((made / VENV / "lib").glob("python*/site-packages/*.dist-info"))),
            _python_of(made / VENV),
            wall(),
        )
        write_manifest(environment)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
    shutil.rmtree(root / ".cache", ignore_errors=True)
    _delete_others(folder, environment)
    return environment


def delete(root: Path, name: str) -> None:
    """Delete an environment, complete or not. It is taken out of force first, so that no program
    can start with half of it. Needs the lock."""
    (root / name / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(root / name)
    shutil.rmtree(root / ".cache", ignore_errors=True)


def size_of(folder: Path) -> int:
    """Return the bytes on disk of all files below a folder; a file with two names counts once."""
    seen: set[int] = set()
    total = 0
    for entry in _entries(folder):
        status = entry.stat(follow_symlinks=False)
        if status.st_ino not in seen:
            seen.add(status.st_ino)
            total += status.st_blocks * 512
    return total


def users_of(folder: Path) -> dict[int, str]:
    """Return the running processes that use a folder of environments: their ids and names."""
    users: dict[int, str] = {}
    inside = f"{folder}{os.sep}"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()
            active = process.environ().get("VIRTUAL_ENV", "")
            used = any(inside in word for word in words[:1]) or f"{active}{os.sep}".startswith(
                inside
            )
            if used and process.pid != os.getpid():
                users[process.pid] = process.name()
    return users


def _delete_others(folder: Path, current: Environment | None) -> None:
    """Delete the builds of an environment that are not in force and not in use."""
    with contextlib.suppress(FileNotFoundError):
        for each in list(folder.iterdir()):
            is_kept = current is not None and each.name == current.build
            if each.is_dir() and not is_kept and not users_of(each):
                shutil.rmtree(each, ignore_errors=True)


def _pinned(packages: Sequence[str], lock: str) -> tuple[str, ...]:
    """Return the named packages, each with its version in the lock; without names, return all
    packages of the lock."""
    pins = {_plain(name): f"{name}{pin}" for name, pin in _PIN.findall(lock)}
    names = [match[0] for match in map(_NAME.match, packages) if match] or pins
    return tuple(pins.get(_plain(name), name).removesuffix("@ ") for name in names)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _python_of(venv: Path) -> str:
    lines = (venv / "pyvenv.cfg").read_text().splitlines()
    facts = dict(line.split(" = ", 1) for line in lines if " = " in line)
    return facts.get("version_info", facts.get("version", "unknown"))


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path))
