"""Talks to this node's disk: deletes a model's folder, provided that it belongs to this home (the
folder tree of one shoal installation).

The same rules apply to `shoal rm`, to clients and to a worker's eviction from disk. A model in use
is not deleted (`bus.models.held_models`). Folders in caches of other programs, or in folders that
the settings name, do not belong to this home and are not deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from pathlib import Path

from bus.models.held_models import FolderKept
from bus.models.tasks import ENGINES_FILE

STAGING = ".staging"
"""A folder below the models' folder for copies in progress and folders to delete. Workers empty it
at start."""
LOCK = "lock"
"""File in the folder of an incomplete pull; it is locked while the pull runs."""


def own_folder(folder: Path, models: Path) -> Path:
    """Return a model's folder, resolved, if it lies below `models`. Raises FolderKept otherwise."""
    if folder.name == ENGINES_FILE:
        text = f"this model is a program of {folder}; it has no files to delete"
        raise FolderKept(text, remedy="delete the model's table from that file")
    real, root = folder.resolve(), models.resolve()
    if real == root or not real.is_relative_to(root):
        raise FolderKept(
            f"{folder} is not inside {models}",
            remedy="delete the model at its source (a Hugging Face cache, another node's disk)",
        )
    if not real.is_dir():
        raise FolderKept(f"{folder} is not on this machine", remedy="run `shoal rm` on its node")
    return real


def cached_repository(folder: Path) -> Path | None:
    """Return the folder of the Hugging Face cache's repository, blobs included, to which a
    snapshot's folder belongs; None for any other folder."""
    snapshots = folder.parent
    repository = snapshots.parent
    is_snapshot = snapshots.name == "snapshots" and repository.name.startswith("models--")
    return repository if is_snapshot and repository.is_dir() else None


def put_aside(folder: Path, models: Path) -> Path:
    """Move a folder into the staging folder, which a starting worker empties. Return the new path.
    Raises FolderKept if the system forbids it."""
    aside = models.resolve() / STAGING / f"deleted-{secrets.token_hex(8)}"
    lock = _lock_of(folder)
    try:
        aside.parent.mkdir(exist_ok=True)
        folder.rename(aside)
    except OSError as error:
        raise _forbidden(folder, error) from error
    finally:
        if lock is not None:
            os.close(lock)
    return aside


def put_back(aside: Path, folder: Path) -> None:
    """Undo `put_aside`. Raises FolderKept if the system forbids it."""
    try:
        aside.rename(folder)
    except OSError as error:
        raise _forbidden(folder, error) from error


def delete_aside(aside: Path, folder: Path, models: Path) -> None:
    """Delete the folder that `put_aside` moved. Also delete the folder of the model's owner
    (`OWNER` of `OWNER/NAME`) if that is empty now. Raises FolderKept if the system forbids it; the
    next start of the worker deletes the remaining files."""
    try:
        shutil.rmtree(aside)
        owner = folder.parent
        with contextlib.suppress(OSError):
            aside.parent.rmdir()  # unless a copy in progress is in it
        if owner not in (models.resolve(), aside.parent) and not any(owner.iterdir()):
            owner.rmdir()
    except OSError as error:
        raise _forbidden(folder, error) from error


def delete_cached(repository: Path) -> None:
    """Delete a repository that `cached_repository` returned. Raises FolderKept if the system
    forbids it."""
    try:
        shutil.rmtree(repository)
    except OSError as error:
        raise _forbidden(repository, error) from error


def _lock_of(folder: Path) -> int | None:
    """Take the lock in the folder of an incomplete download; None if the folder has no lock file.
    Raises FolderKept while a download writes to the folder."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise FolderKept(
            f"a pull is writing to {folder}", remedy="cancel the pull first, or stop it with Ctrl-C"
        ) from error
    return lock


def _forbidden(folder: Path, error: OSError) -> FolderKept:
    reason = error.strerror or str(error)
    return FolderKept(
        f"{folder} could not be deleted: {reason}",
        remedy="check who owns the folder, and delete it by hand",
    )
