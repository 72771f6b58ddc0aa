"""Talks to the disk: the private folder of files that runners preload.

Every runner loads these files as code. Their folder is therefore private to this user, and their
names contain a hash of their inputs. A file that another user could have written is refused. All of
the user's homes share the folder, also with other versions of shoal: a file is deleted only after
half a year without use.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

UNUSED_S = 180 * 86400.0


class NoInterposer(Exception):
    """A library to preload cannot be made or used; `args[0]` is the reason, `args[1]` the
    remedy."""


def private_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file; None if it does not exist. Raises NoInterposer if another user
    could have written it."""
    path = folder / name
    if not path.exists():
        return None
    for place, is_kind in ((folder, stat.S_ISDIR), (path, stat.S_ISREG)):
        status = place.lstat()
        if not is_kind(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise NoInterposer(f"{place} is not private to this user", f"remove {place}")
    return path


def written_file(folder: Path, name: str, content: bytes) -> Path:
    """Return the path of a file; write it if it does not exist. Raises NoInterposer."""
    draft = folder / f"{name}-draft-{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ready = private_file(folder, name)
        if ready is None:
            draft.write_bytes(content)
            ready = placed(draft, folder, name)
    except OSError as error:
        raise NoInterposer(f"{folder}: {error.strerror}", f"check {folder}") from error
    return ready


def placed(draft: Path, folder: Path, name: str) -> Path:
    """Rename the completely written file `draft`, and return its new path. Raises NoInterposer."""
    draft.chmod(0o600)
    os.replace(draft, folder / name)
    made = private_file(folder, name)
    if made is None:
        raise NoInterposer(f"a file written to {folder} has disappeared", f"check {folder}")
    return made


def note_use(path: Path) -> None:
    """Record that a node starts with a file, so that it is not deleted as unused."""
    with contextlib.suppress(OSError):
        os.utime(path)


def remove_unused(folder: Path, name: str) -> None:
    """Delete the files that begin with a name and were not used for half a year."""
    for old in folder.glob(f"{name}-*"):
        with contextlib.suppress(OSError):
            if old.stat().st_mtime < time.time() - UNUSED_S:
                old.unlink()
