"""Talks to the disk and to the random number generator: ids that are made once, and the lock that
prevents two processes of one service.

A node's id and its owner's token are made at the node's first start and stored in its state folder.
A boot id is new for every process. Next to the file of each id or token is a second file with a
checksum (`node-id.sum`). An id or token that does not match its checksum is refused. The checksum
has its own file, because people and older versions of shoal read the first file.

`sealed` and `unsealed` are pure: they add and check the checksum of small state files, so that no
flipped bit is missed. The format is `<content> crc32:<8 hexadecimal digits>` and a newline, with
the CRC-32 of the content. A file of an older version has no checksum and is accepted if its content
has the older format. A single flipped bit never turns one format into the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, Any, TextIO
from zlib import crc32

from bus.process.endpoints import Endpoints
from bus.process.installation import running_code
from bus.process.logs import Log
from bus.wire.errors import AlreadyRunning, ConfigError, ShoalError
from bus.wire.ids import Boot, NodeId

FILE, TOKEN_FILE = "node-id", "http-token"
MARK = " crc32:"
_FORM = re.compile(r"(.*) crc32:([0-9a-f]{8})\n", re.DOTALL)


class Damaged(ShoalError):
    """The content of a file does not match its checksum, or has no known format."""


def sealed(content: str) -> bytes:
    """Return a file's bytes: the content with its checksum."""
    data = content.encode()
    return data + f"{MARK}{crc32(data):08x}\n".encode()


def unsealed(data: bytes, *, older: re.Pattern[str] | None = None) -> str:
    """Return the content of a file. A content that matches `older` needs no checksum. Raises
    Damaged."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Damaged("the file is not text") from None
    match = _FORM.fullmatch(text)
    if match is not None and f"{crc32(match[1].encode()):08x}" == match[2]:
        return match[1]
    if match is None and MARK not in text and older is not None and older.fullmatch(text):
        return text
    raise Damaged("the file's content does not match its checksum")


def new_boot() -> Boot:
    """Return a new boot id, 8 hexadecimal digits."""
    return Boot(secrets.token_hex(4))


def new_name(prefix: str) -> str:
    """Return a new short name such as `inst-4f1c9a02` (for instances, commands)."""
    return f"{prefix}-{secrets.token_hex(4)}"


def node_id(state: Path) -> NodeId:
    """Return this node's id, from `<state>/node-id`; the first call makes it."""
    return NodeId(_made_once(state / FILE, lambda: f"n{secrets.token_hex(5)}"))


def http_token(state: Path) -> str:
    """Return the token of this node's owner for HTTP, from `<state>/http-token`, which other users
    can't read; the first call makes it."""
    return _made_once(state / TOKEN_FILE, lambda: f"sk-{secrets.token_urlsafe(32)}")


def known_http_token(state: Path) -> str | None:
    """Return the owner's HTTP token of the node with this state folder; None if no node was ever
    started, or if other users may read the file."""
    path = state / TOKEN_FILE
    is_private = path.exists() and not path.stat().st_mode & 0o077
    return (_read_word(path) or None) if is_private else None


def new_api_key() -> str:
    """Return a new API key of 256 bits, to be shown once."""
    return f"sk-shoal-{secrets.token_urlsafe(32)}"


def _made_once(path: Path, make: Callable[[], str]) -> str:
    """Return the id or token in a file; if there is no file, write one with a new id or token.
    Raises ConfigError.

    The processes of a node start together. The file gets its name only once its content is written,
    so that no process reads an empty file. A file that is empty after a power cut is written again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        word = _read_word(path)
        if not word:
            word = make()
            _put(_sum_of(path), sealed(_witness(path, word)))
            _put(path, f"{word}\n".encode())
        elif not _kept_witness(path):
            _put(_sum_of(path), sealed(_witness(path, word)))  # the witness is missing or damaged
    return word


def _put(path: Path, content: bytes) -> None:
    """Write a file that other users can't read, in place of any file with its name."""
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    with open(draft, "xb", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def known_node_id(state: Path) -> NodeId | None:
    """Return the id of the node with this state folder; None if no node was ever started. Raises
    ConfigError if the file is damaged."""
    return NodeId(_read_word(state / FILE)) or None


def _read_word(path: Path) -> str:
    """Return the id or token in a file; "" if there is no file. Raises ConfigError if the content
    does not match its checksum file."""
    if not path.exists():
        return ""
    word, witness = path.read_bytes().decode(errors="replace").strip(), _kept_witness(path)
    if witness in ("", _witness(path, word)):
        return word
    was = f"write {witness} into it" if path.name == FILE else "restore it from a backup"
    raise ConfigError(
        f"{path} is damaged; {was}, or remove the file so that the next start makes a new one. "
        "Check the disk"
    )


def _witness(path: Path, word: str) -> str:
    """Return what the checksum file of an id or token must contain: the id itself, or the hash of a
    token."""
    return word if path.name == FILE else hashlib.sha256(word.encode()).hexdigest()


def _sum_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sum")


def _kept_witness(path: Path) -> str:
    """Return the content of the existing checksum file of `path`; "" if there is none, or if it is
    damaged."""
    with contextlib.suppress(OSError, Damaged):
        return unsealed(_sum_of(path).read_bytes())
    return ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def lies_at(file: IO[Any], path: str | Path) -> bool:
    """Return whether an open file is still the file at `path`: it was neither removed nor
    replaced."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


class RoleLock:
    """The lock that prevents two processes of one service, such as the gateway, on a node:
    `<runtime>/<process>.role`. The file contains this process's id and, on its second line, the
    code that this process was started from. The runtime folder and its parent are locked, too, so
    that systemd-tmpfiles(8) does not clean them."""

    def __init__(self, endpoints: Endpoints, process: str) -> None:
        """Take the lock. Raises AlreadyRunning with the pid of the process that has it."""
        self.process = process
        self.path = Path(endpoints.folder) / f"{process.replace(':', '-')}.role"
        self._trouble = ""
        self._file, self._held = self._take()

    def hold_again(self) -> bool:
        """Take the lock again if the lock file or its folder was removed; return whether that was
        so. Raises AlreadyRunning if another process has taken the lock meanwhile, and OSError."""
        if lies_at(self._file, self.path):
            return False
        before = self._held
        self._file, self._held = self._take()
        before.close()
        return True

    def look(self, log: Log) -> None:
        """If the lock file was removed, take the lock again and log that. A failure is logged
        once."""
        why = ""
        try:
            if self.hold_again():
                log.warning("the lock file of this process was removed; making a new one")
        except (OSError, AlreadyRunning) as error:
            why = str(error)
        if why and why != self._trouble:
            log.error(
                "the lock file of this process was removed, and a new one cannot be made", why=why
            )
        self._trouble = why

    def release(self) -> None:
        """Delete the file and release the lock."""
        self.path.unlink(missing_ok=True)
        self._held.close()

    def _take(self) -> tuple[TextIO, contextlib.ExitStack]:
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.ExitStack() as held:
            file = held.enter_context(open(self.path, "a+"))
            for path in (folder, folder.parent):
                held.enter_context(_unswept(path))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                owner = file.readline().strip() or "unknown"
                raise AlreadyRunning(f"{self.process} is already running (pid {owner})") from error
            file.truncate(0)
            file.write(f"{os.getpid()}\n{running_code()}\n")
            file.flush()
            return file, held.pop_all()


@contextlib.contextmanager
def _unswept(folder: Path) -> Generator[None]:
    """Hold a shared lock on a folder while the context is open. systemd-tmpfiles(8), which deletes
    old files in /tmp, skips a locked folder and its content. The runtime folder's parent is locked
    in the same way, because it has files that all shoal installations of the user share, such as
    the libraries preloaded into runners."""
    held = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)
