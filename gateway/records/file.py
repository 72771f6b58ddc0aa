"""Talks to SQLite and the disk: opens, repairs, reads and writes the records file for one HTTP
process.

This is the only module that imports sqlite3. Several processes open the same file. A process holds
a lock file while it creates, migrates or renames the records file. If the file is broken, has a
later version, or cannot be written, it is renamed and a new file is created. Other processes notice
at their next access, because the inode has changed. A read error that no statement of ours has
caused means that the file is broken. When `write` returns, it has committed: the rows survive a
crash of the process and, with `durable`, a power failure.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from bus.process.clock import now
from bus.process.logs import Log
from gateway.records.schema import VERSION, statements_from
from gateway.records.statements import RecordsUnavailable, Statement

LOCK_S = 10.0
"""How long this process waits, in seconds, while another process checks or migrates the file."""
LOOK_S = 0.02
BUSY_S = 5.0
"""How long a write waits, in seconds, for writes of other processes."""
CHECKPOINT_BYTES = 4 << 20
"""Size in bytes to which the write-ahead log is truncated once its content has been moved to the
file."""
FREE_PAGES = 1024
"""If the file has more unused pages than this, it is shrunk."""
ASIDE_AT_MOST = 4
"""At most this many broken files are kept; the oldest are deleted."""
PRIVATE = 0o600

Flaw = Literal["broken", "newer", "unwritable"]
_FLAW_TEXT: dict[Flaw, str] = {
    "broken": "the records file is broken",
    "newer": "the records file was written by a later version of shoal",
    "unwritable": "the records file is not writable",
}
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_DEFECTS = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.NotSupportedError,
    sqlite3.ProgrammingError,
)
"""Errors whose cause is a faulty statement of shoal's, not the file. They are raised unchanged, and
the file is not renamed."""
_UNREADABLE = (UnicodeDecodeError, SystemError)
"""Errors that Python raises for a file whose schema is broken, because SQLite's message quotes
it."""
_T = TypeVar("_T")


class RecordsFile:
    """A records file, for use in one thread. The file is opened at the first access. `max_pages`
    limits its size, for tests of a full disk; 0: no limit.
    """

    def __init__(self, path: Path, log: Log, *, max_pages: int = 0) -> None:
        self._path = path
        self._log = log
        self._max_pages = max_pages
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def write(self, statements: Sequence[Statement], *, durable: bool = False) -> list[int]:
        """Run statements in one transaction, which is committed when this method returns. Return
        how many rows each statement changed. Raises RecordsUnavailable."""

        def run(connection: sqlite3.Connection) -> list[int]:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            changed = [
                connection.execute(statement.text, statement.values).rowcount
                for statement in statements
            ]
            connection.execute("COMMIT")
            return changed

        return self._with_connection(run)

    def read(self, statements: Sequence[Statement]) -> list[list[Sequence[Any]]]:
        """Run queries in one transaction, and return the rows of each query. Raises
        RecordsUnavailable."""

        def rows(connection: sqlite3.Connection) -> list[list[Sequence[Any]]]:
            connection.execute("BEGIN")
            results = [
                connection.execute(statement.text, statement.values).fetchall()
                for statement in statements
            ]
            connection.execute("COMMIT")
            return results

        return self._with_connection(rows)

    def shrink(self) -> None:
        """Return some pages that have been unused for long to the file system. Raises
        RecordsUnavailable."""

        def shrunk(connection: sqlite3.Connection) -> None:
            (free,) = connection.execute("PRAGMA freelist_count").fetchone()
            if free > FREE_PAGES:
                # `execute` would free a single page: each page is a step of its own
                connection.executescript(f"PRAGMA incremental_vacuum({FREE_PAGES // 4})")

        self._with_connection(shrunk)

    def close(self) -> None:
        connection, self._connection, self._identity = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    # --- internals -----------------------------------------------------------------------------

    def _with_connection(self, act: Callable[[sqlite3.Connection], _T]) -> _T:
        """Call `act` with the open file, and return its result. If the file is broken, create a new
        file and retry once."""
        try:
            return self._acted(act)
        except _DEFECTS:
            raise
        except (sqlite3.Error, *_UNREADABLE) as error:
            flaw, why = _flaw_of(error), _words_of(error)
            if flaw is None:
                raise RecordsUnavailable(why) from error
            broken = self._identity
            self.close()
            self._open(distrusted=(broken, flaw, why))
        try:
            return self._acted(act)
        except (sqlite3.Error, *_UNREADABLE) as error:
            raise RecordsUnavailable(_words_of(error)) from error

    def _acted(self, act: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._connection is not None and _identity(self._path) != self._identity:
            self.close()  # moved aside by another process, or removed
        if self._connection is None:
            self._open()
        connection = self._connection
        assert connection is not None
        try:
            return act(connection)
        finally:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")

    def _open(self, distrusted: tuple[tuple[int, int] | None, Flaw, str] | None = None) -> None:
        """Open and migrate the file. Rename it first, and create a new one, if it is unusable or is
        the file `distrusted`. Raises RecordsUnavailable."""
        try:
            with _locked(self._path):
                if distrusted is not None and distrusted[0] == _identity(self._path):
                    self._set_aside(*distrusted[1:])
                opened = self._opened()
                if not isinstance(opened, sqlite3.Connection):
                    self._set_aside(*opened)
                    opened = self._opened()
        except (OSError, sqlite3.Error) as error:
            raise RecordsUnavailable(str(error)) from error
        if not isinstance(opened, sqlite3.Connection):
            raise RecordsUnavailable(f"{_FLAW_TEXT[opened[0]]}: {opened[1]}")
        self._connection, self._identity = opened, _identity(self._path)

    def _opened(self) -> sqlite3.Connection | tuple[Flaw, str]:
        """Open the file. Return the connection, or the flaw that makes the file unusable."""
        if _identity(self._path) is None:
            # sqlite3 would let others read the file; files beside it get the same permissions
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
        if not os.access(self._path, os.R_OK | os.W_OK):
            return "unwritable", "the file's permissions or its disk do not allow it"
        connection = sqlite3.connect(
            self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.text_factory = _text_of
            flaw = _migrated(connection, self._max_pages)
        except (sqlite3.Error, *_UNREADABLE) as error:
            connection.close()
            kind = _flaw_of(error)
            if kind is None:
                raise
            return kind, _words_of(error)
        if flaw is not None:
            connection.close()
            return flaw
        self._path.chmod(PRIVATE)
        return connection

    def _set_aside(self, flaw: Flaw, why: str) -> None:
        """Rename the file and SQLite's extra files. The write-ahead log is renamed first. If it
        were left behind, SQLite would take it for the log of the new file."""
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        there = set(self._path.parent.glob(f"{self._path.name}.*"))
        names = (f"{self._path.name}.{flaw}-{stamp}-{number}" for number in range(len(there) + 1))
        aside = next(p for name in names if (p := self._path.with_name(name)) not in there)
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{self._path}{suffix}", f"{aside}{suffix}")
        self._log.critical(
            f"{_FLAW_TEXT[flaw]}; shoal moved it aside and created a new one",
            why=why,
            aside=str(aside),
        )
        broken = self._path.parent.glob(f"{self._path.name}.broken-*-*[0-9]")
        for old in sorted(broken, key=lambda path: path.stat().st_mtime)[:-ASIDE_AT_MOST]:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{old}{suffix}").unlink(missing_ok=True)


def _migrated(connection: sqlite3.Connection, max_pages: int) -> tuple[Flaw, str] | None:
    """Check a file and migrate it to the current version. Return the flaw that makes it unusable,
    or None. Raises sqlite3.Error."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        return "newer", f"the file's version is {version}; this shoal supports up to {VERSION}"
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok" or version < 0:
        return "broken", " ".join(str(verdict).split())
    if max_pages:
        connection.execute(f"PRAGMA max_page_count = {max_pages}")
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the first table
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA journal_size_limit = {CHECKPOINT_BYTES}")
    connection.execute("PRAGMA secure_delete = ON")  # deleted content is overwritten
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in statements_from(version):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    if not _tables() <= _tables_of(connection):
        return "broken", f"the file's tables are not those of version {VERSION}"
    return None


@functools.cache
def _tables() -> frozenset[tuple[str, str]]:
    """Return the name and the SQL of each table, index and trigger of the current version."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements_from(0):
            connection.execute(statement)
        return _tables_of(connection)


def _tables_of(connection: sqlite3.Connection) -> frozenset[tuple[str, str]]:
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return frozenset((str(name), str(sql)) for name, sql in rows)


def _words_of(error: Exception) -> str:
    if isinstance(error, sqlite3.Error):
        return str(error)
    return "cannot read its tables: SQLite's message is not text"


def _flaw_of(error: Exception) -> Flaw | None:
    """Return the flaw of the file that an error proves. A short read means that the file was
    truncated. None if the disk, the folder or another process causes the error."""
    if isinstance(error, _UNREADABLE):
        return "broken"
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF in _BROKEN or code == sqlite3.SQLITE_IOERR_SHORT_READ:
        return "broken"
    # only the plain code: the others mean the folder, a lock, or a moved file
    return "unwritable" if code == sqlite3.SQLITE_READONLY else None


def _text_of(data: bytes) -> str:
    """Decode a text from the file. Bytes that are invalid UTF-8 become replacement characters."""
    return data.decode(errors="replace")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold the lock file of a records file while the context is open. Raises OSError if the lock is
    not free in time or cannot be taken."""
    held = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE)
    try:
        give_up_at = now() + LOCK_S
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if now() >= give_up_at:
                    raise
            time.sleep(LOOK_S)
        yield
    finally:
        os.close(held)
