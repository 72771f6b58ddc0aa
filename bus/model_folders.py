"""Talks to this node's disk: deletes a model's folder, where it is this home's own.

The one rule for `shoal rm`, for clients and for a worker that lets go what it fetched: a model that
is held stays (`bus.held_models`), and what lies in a cache of other programs, or in a folder that
the settings name, is not this home's to delete from.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from pathlib import Path

from bus.held_models import FolderKept

STAGING = ".staging"
"""Below the folder of models: what is copied, and what is to be deleted; workers sweep it when they
start."""
LOCK = "lock"
"""In the folder of a pull that did not end, locked while one goes on there."""


def own_folder(folder: Path, models: Path) -> Path:
    """Return a model's folder, resolved, if it lies below `models`. Raises FolderKept otherwise."""
    real, root = folder.resolve(), models.resolve()
    if real == root or not real.is_relative_to(root):
        raise FolderKept(
            f"{folder} is not inside {models}",
            remedy="delete it at its source (a Hugging Face cache, another node's disk)",
        )
    if not real.is_dir():
        raise FolderKept(f"{folder} is not on this machine", remedy="run `shoal rm` on its node")
    return real


def cached_repository(folder: Path) -> Path | None:
    """Return the repository in a Hugging Face cache that a snapshot's folder belongs to, with its
    blobs; None for any other folder."""
    snapshots = folder.parent
    repository = snapshots.parent
    is_one = snapshots.name == "snapshots" and repository.name.startswith("models--")
    return repository if is_one and repository.is_dir() else None


def put_aside(folder: Path, models: Path) -> Path:
    """Move a folder out of sight in one step, to where a worker that starts removes it; returns
    where to. Raises FolderKept when the system forbids it."""
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
    """Undo `put_aside`. Raises FolderKept when the system forbids it."""
    try:
        aside.rename(folder)
    except OSError as error:
        raise _forbidden(folder, error) from error


def delete_aside(aside: Path, folder: Path, models: Path) -> None:
    """Delete what `put_aside` moved, and the folder's owner's, where that is left empty. Raises
    FolderKept when the system forbids it; what is left then is removed at the worker's start."""
    try:
        shutil.rmtree(aside)
        owner = folder.parent
        with contextlib.suppress(OSError):
            aside.parent.rmdir()  # where no stage is in it
        if owner not in (models.resolve(), aside.parent) and not any(owner.iterdir()):
            owner.rmdir()
    except OSError as error:
        raise _forbidden(folder, error) from error


def delete_cached(repository: Path) -> None:
    """Delete a repository that `cached_repository` returned. Raises FolderKept when the system
    forbids it."""
    try:
        shutil.rmtree(repository)
    except OSError as error:
        raise _forbidden(repository, error) from error


def _lock_of(folder: Path) -> int | None:
    """Take the lock of a pull's folder; None for a folder without one. Raises FolderKept while a
    model is pulled into it."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise FolderKept(
            f"{folder} is being pulled into", remedy="cancel that first, or stop it with Ctrl-C"
        ) from error
    return lock


def _forbidden(folder: Path, error: OSError) -> FolderKept:
    said = error.strerror or str(error)
    return FolderKept(
        f"{folder} could not be deleted: {said}",
        remedy="check who owns the folder, and delete it by hand",
    )
