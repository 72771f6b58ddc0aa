"""Talks to the disk: `tasks.toml` and `clients.toml`, checked each second, off the event loop.

The last valid version of a file is in force. An invalid file changes nothing; its error is logged
once and is in `trouble`. A changed file is read only after two checks have seen the same version,
because the first check may see a file that is still being written. A deleted file counts as empty.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from bus.links.reactor import Reactor
from bus.models.tasks import MOST_BYTES, ClientTable, FileTable, TaskTable, read_clients, read_tasks
from bus.process.logs import Log
from bus.wire.errors import ConfigError

LOOK_S = 1.0
Stamp = tuple[int, ...] | None
Read = TypeVar("Read", bound=FileTable)


class FileBook(Generic[Read]):
    """A settings file of the operator, and the table from it that is in force in this process.
    `empty` is the table if the file does not exist. `trouble` is the error in the current file, or
    "". `changed_at_s` is when the table in force was written."""

    def __init__(
        self, file: str, empty: Read, read: Callable[[str], Read], tell: Callable[[str], None]
    ) -> None:
        self.file = Path(file) if file else None
        self.table = empty
        self._empty = empty
        self._text_read = read
        self.trouble = ""
        self.changed_at_s = 0.0
        self._tell = tell
        self._read: Stamp = None
        self._seen: Stamp = None
        if self.file is not None:
            self._seen = _stamp(self.file)
            self.look()

    def look(self) -> None:
        """Read the file if it has changed since the last version and is the same as at the previous
        check. Blocks on the disk."""
        if self.file is None:
            return
        seen, before = _stamp(self.file), self._seen
        self._seen = seen
        if seen == self._read or seen != before:
            return
        self._read = seen
        trouble = self._take(self.file)
        if trouble != self.trouble and trouble:
            self._tell(f"{trouble} (the last valid version stays in force)")
        self.trouble = trouble

    def _take(self, file: Path) -> str:
        """Read the table from the file. Return the error, or ""."""
        try:
            with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
                data = opened.read(MOST_BYTES + 1)
                written_at_s = os.fstat(opened.fileno()).st_mtime
            table = self._text_read(data.decode())
        except FileNotFoundError:
            self.table, self.changed_at_s = self._empty, 0.0
            return ""
        except (ConfigError, UnicodeDecodeError, OSError) as error:
            return str(error) if isinstance(error, ConfigError) else f"{file.name}: {error}"
        self.table, self.changed_at_s = table, written_at_s
        return ""


class TaskBook(FileBook[TaskTable]):
    """The table of tasks in force in this process."""

    def __init__(self, file: str, tell: Callable[[str], None]) -> None:
        super().__init__(file, TaskTable(), read_tasks, tell)

    def variables(self) -> frozenset[str]:
        """Return the names of the environment variables with providers' keys."""
        return frozenset(
            provider.key_env for provider in self.table.providers.values() if provider.key_env
        )


class ClientBook(FileBook[ClientTable]):
    """The profiles of clients in force in this process."""

    def __init__(self, file: str, tell: Callable[[str], None]) -> None:
        super().__init__(file, ClientTable(), read_clients, tell)


def open_tasks(file: str, log: Log, *, tells: bool) -> TaskBook:
    """Return the tasks of a file ("": no file). Only the process with `tells` logs errors, so that
    each error is logged once per gateway."""
    return TaskBook(file, log.warning if tells else _nothing)


def open_profiles(file: str, log: Log, *, tells: bool) -> ClientBook:
    """Return the client profiles of a file ("": no file). Only the process with `tells` logs
    errors."""
    return ClientBook(file, log.warning if tells else _nothing)


def follow_files(books: Sequence[TaskBook | ClientBook], reactor: Reactor) -> None:
    """Check the files of `books` each second from now on, in one thread, unless the last check
    still runs."""
    followed = [book for book in books if book.file is not None]
    checks: list[asyncio.Future[None]] = []

    def look_at_all() -> None:
        for book in followed:
            book.look()

    def begin() -> None:
        if not checks or checks[0].done():
            checks[:] = [asyncio.get_running_loop().run_in_executor(None, look_at_all)]

    if followed:
        reactor.every(LOOK_S, begin)


def _nothing(_text: str) -> None:
    pass


def _stamp(file: Path) -> Stamp:
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
