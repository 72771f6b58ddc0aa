"""Talks to the disk and to chance: ids that are made once, and the lock of a process's role.

A node id is made at a node's first start and kept in its state folder, and so is its owner's
token; a boot id is new for every process. Beside each kept word lies what it is known by,
with a checksum (`node-id.sum`): a word that no longer matches is refused, never taken for another
one. The word has a file to itself, because people and older versions read that.

`sealed` and `unsealed` are pure: small state files whose content carries its own checksum, so that
no flipped bit passes. The form is `<content> crc32:<8 hexadecimal digits>` and a newline; the
CRC-32 is that of the content. A file that an older version wrote has no checksum and is taken where
its content has the older form. A single flipped bit never turns the one form into the other.
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
from bus.process.logs import Log
from bus.process.tree import running_code
from bus.wire.errors import AlreadyRunning, ConfigError, ShoalError
from bus.wire.ids import Boot, NodeId

FILE, TOKEN_FILE = "node-id", "http-token"
MARK = " crc32:"
_FORM = re.compile(r"(.*) crc32:([0-9a-f]{8})\n", re.DOTALL)


class Damaged(ShoalError):
    """The content of a file does not match its checksum, or has no form that is known."""


def sealed(content: str) -> bytes:
    """Return a file's bytes: the content with its checksum."""
    data = content.encode()
    return data + f"{MARK}{crc32(data):08x}\n".encode()


def unsealed(data: bytes, *, older: re.Pattern[str] | None = None) -> str:
    """Return the content of a file, which may have the form `older`, without a checksum. Raises
    Damaged."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Damaged("it is not text") from None
    found = _FORM.fullmatch(text)
    if found is not None and f"{crc32(found[1].encode()):08x}" == found[2]:
        return found[1]
    if found is None and MARK not in text and older is not None and older.fullmatch(text):
        return text
    raise Damaged("its content does not match its checksum")


def new_boot() -> Boot:
    """Return a fresh boot id, 8 hexadecimal digits."""
    return Boot(secrets.token_hex(4))


def new_name(prefix: str) -> str:
    """Return a fresh short name such as `inst-4f1c9a02` (for instances, commands)."""
    return f"{prefix}-{secrets.token_hex(4)}"


def node_id(state: Path) -> NodeId:
    """Return this node's id, from `<state>/node-id`; made there at the first call."""
    return NodeId(_made_once(state / FILE, lambda: f"n{secrets.token_hex(5)}"))


def http_token(state: Path) -> str:
    """Return what HTTP asks this node's owner for, from `<state>/http-token`, which others cannot
    read; made there at the first call."""
    return _made_once(state / TOKEN_FILE, lambda: f"sk-{secrets.token_urlsafe(32)}")


def known_http_token(state: Path) -> str | None:
    """Return what HTTP takes from the owner of the node whose state this is; None where no node was
    ever started, or where others may read it."""
    path = state / TOKEN_FILE
    is_private = path.exists() and not path.stat().st_mode & 0o077
    return (_known(path) or None) if is_private else None


def new_api_key() -> str:
    """Return a fresh API key of 256 bits, to be shown once."""
    return f"sk-shoal-{secrets.token_urlsafe(32)}"


def _made_once(path: Path, make: Callable[[], str]) -> str:
    """Return the word in a file, a new one where there is none. Raises ConfigError.

    The processes of a node start together: the file has its name only once it has its content,
    so that none of them reads an empty one. One that a power cut left empty is made again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _known(path)
        if not known:
            known = make()
            _put(_sum_of(path), sealed(_witness(path, known)))
            _put(path, f"{known}\n".encode())
        elif not _kept_witness(path):
            _put(_sum_of(path), sealed(_witness(path, known)))  # none yet, or damaged itself
    return known


def _put(path: Path, content: bytes) -> None:
    """Put a file that others cannot read in the place of any of its name."""
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    with open(draft, "xb", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def known_node_id(state: Path) -> NodeId | None:
    """Return the id of the node whose state this is; None where no node was ever started. Raises
    ConfigError where it is damaged."""
    return NodeId(_known(state / FILE)) or None


def _known(path: Path) -> str:
    """Return the word in a file, "" where there is none. Raises ConfigError where it is not the one
    that was kept."""
    if not path.exists():
        return ""
    word, kept = path.read_bytes().decode(errors="replace").strip(), _kept_witness(path)
    if kept in ("", _witness(path, word)):
        return word
    was = f"it was {kept}: put that back" if path.name == FILE else "restore it from a backup"
    raise ConfigError(
        f"{path} is damaged; {was}, or remove the file so that the next start makes a new one. "
        "Check the disk"
    )


def _witness(path: Path, word: str) -> str:
    """Return what is kept to know a word by: the id itself, of a secret a hash."""
    return word if path.name == FILE else hashlib.sha256(word.encode()).hexdigest()


def _sum_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sum")


def _kept_witness(path: Path) -> str:
    """Return what was kept to know a word by; "" where that is gone or damaged itself."""
    with contextlib.suppress(OSError, Damaged):
        return unsealed(_sum_of(path).read_bytes())
    return ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def lies_at(file: IO[Any], path: str | Path) -> bool:
    """Return whether an open file is still the one at `path`, and was not removed or replaced."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


class RoleLock:
    """The lock of a role, `<runtime>/<process>.role`, with our pid in it and, in its second line,
    the code that this process was started from. The folders above it are locked as well."""

    def __init__(self, endpoints: Endpoints, process: str) -> None:
        """Take the lock. Raises AlreadyRunning, naming the pid that holds it."""
        self.process = process
        self.path = Path(endpoints.folder) / f"{process.replace(':', '-')}.role"
        self._trouble = ""
        self._file, self._held = self._take()

    def hold_again(self) -> bool:
        """Take the lock anew where its file, or the folder, was removed; return whether it was.
        Raises AlreadyRunning where another process has the role by now, and OSError."""
        if lies_at(self._file, self.path):
            return False
        before = self._held
        self._file, self._held = self._take()
        before.close()
        return True

    def look(self, log: Log) -> None:
        """Hold the lock again where its file was removed, and say so; a trouble once."""
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
        """Remove the file, and let go."""
        self.path.unlink(missing_ok=True)
        self._held.close()

    def _take(self) -> tuple[TextIO, contextlib.ExitStack]:
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.ExitStack() as held:
            file = held.enter_context(open(self.path, "a+"))
            for one in (folder, folder.parent):
                held.enter_context(_unswept(one))
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
    """Share the lock of a folder: systemd-tmpfiles(8), which takes what is old from /tmp, passes by
    a folder that is locked, and all that is in it. The folder above has the files that all of the
    user's homes share, those that are preloaded into runners among them."""
    held = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)
