"""Talks to the disk: stores a model that is being pulled until it is complete and verified.

`<models>/.pulling/<owner>--<name>@<commit>/` has `pull.json` (the model), and its files with the
record of their pieces (`worker.models.files.growing`). The finished model is renamed into place.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import time
from collections.abc import Mapping, Set
from pathlib import Path

from worker.models.files import (
    GrowingFiles,
    Origin,
    note_origin,
    origin_of,
    sync_folder,
    try_lock,
)
from worker.models.local_models import PULLING
from worker.pulling.listing import HubFile, HubListing, PullFailed

KEPT_S = 7 * 24 * 3600.0
"""A partial model without progress for this long is deleted."""
HASHED_AGAIN_BYTES = 64 << 20
"""Files up to this size are hashed again when a pull continues, because that is quick."""
LOCK_S = 10.0
"""An ending process of this node releases a partial model within this time."""


class Partial:
    """The partial model of one listing, below the models folder; locked by this process until it
    ends. Raises OSError, and PullFailed if another process holds it."""

    def __init__(self, models: Path, listing: HubListing) -> None:
        self._models = models
        self._listing = listing
        self._folder = partial_folder(models, listing)
        self._name = self._folder.name.removesuffix(f"@{listing.commit}")
        sizes = {file.path: file.size_bytes for file in listing.files}
        self._files = GrowingFiles(self._folder, sizes)
        self._lock = _locked(self._folder, listing.model)

    def open(self) -> tuple[Mapping[str, bytes], Set[str]]:
        """Create the folder of the partial model, or read what an existing folder has: the pieces
        of each file, and the verified files. Small files count as verified only after they are
        hashed again, because anything may have changed them since an earlier process. Large files
        keep their status unless they were written to."""
        note = {"model": self._listing.model, "digest": self._listing.digest}
        if self._note() != note:
            shutil.rmtree(self._files.files, ignore_errors=True)
            (self._folder / "pull.json").write_text(json.dumps(note))
        have: dict[str, bytes] = {}
        checked: set[str] = set()
        for file in self._listing.files:
            noted = self._files.begin(file.path)
            have[file.path] = noted[:-1]
            small = file.size_bytes <= HASHED_AGAIN_BYTES
            if noted[-1] and not small and not self._files.changed(file.path):
                checked.add(file.path)
        os.utime(self._folder)
        return have, checked

    def path(self, file: HubFile) -> Path:
        """Return the path where a file grows."""
        return self._files.path(file.path)

    def write(self, file: HubFile, index: int, content: bytes) -> None:
        """Write a piece, then record it."""
        self._files.write(file.path, index, content)

    def note_whole(self, file: HubFile, *, is_right: bool) -> None:
        """Record that a whole file is correct and synced to disk, or that the file must be fetched
        from its beginning."""
        if not is_right:
            self._files.forget(file.path)
            return
        with open(self.path(file), "r+b") as opened:
            os.fsync(opened.fileno())
        self._files.found_right(file.path)

    def publish(self) -> Path:
        """Move the model into place, durably; return its folder. Raises OSError, PullFailed."""
        target = self._models / self._listing.model
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink() or (target.exists() and any(target.iterdir())):
            text = f"{target} already exists: move it, or remove it with `shoal rm`"
            raise PullFailed("conflict", text)
        hashes = {file.path: file.digest for file in self._listing.files}
        commit = self._listing.commit
        source = f"{self._listing.model}@{commit[:12]}"
        note_origin(self._files.files, Origin("pulled", (source,), commit, hashes))
        self._files.sync_folders()
        os.replace(self._files.files, target)
        sync_folder(target.parent)
        sync_folder(self._models)
        for folder in (self._models / PULLING).glob(f"{self._name}@*"):
            shutil.rmtree(folder, ignore_errors=True)
        return target

    def _note(self) -> object:
        try:
            return json.loads((self._folder / "pull.json").read_text())
        except (OSError, ValueError):
            return None


def partial_folder(models: Path, listing: HubListing) -> Path:
    owner, _, name = listing.model.partition("/")
    return models / PULLING / f"{owner}--{name}@{listing.commit}"


def pieces_here(models: Path, listing: HubListing) -> Mapping[str, bytes]:
    """Return the pieces of each file of a listing that an earlier pull left; creates nothing.
    Raises OSError."""
    sizes = {file.path: file.size_bytes for file in listing.files}
    files = GrowingFiles(partial_folder(models, listing), sizes)
    return {path: files.noted(path)[:-1] for path in sizes}


def pulled_revision(folder: Path) -> str | None:
    """Return the commit at which the model in a folder was pulled; None if it was not pulled."""
    return origin_of(folder).revision or None


def sweep_partial(models: Path, now_wall: float) -> None:
    """Delete partial models without progress for a week."""
    with contextlib.suppress(FileNotFoundError):
        for folder in (models / PULLING).iterdir():
            with contextlib.suppress(OSError):
                if now_wall - folder.stat().st_mtime > KEPT_S:
                    shutil.rmtree(folder, ignore_errors=True)


def delete_partial(models: Path, model: str) -> int:
    """Delete the partial files of a model, once no process writes them; return their bytes on the
    disk. Raises OSError, PullFailed."""
    owner, _, name = model.partition("/")
    size_bytes = 0
    for folder in (models / PULLING).glob(f"{glob.escape(f'{owner}--{name}')}@*"):
        lock = _locked(folder, model)
        try:
            size_bytes += sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))
            shutil.rmtree(folder)
        finally:
            os.close(lock)
    return size_bytes


def _locked(folder: Path, model: str) -> int:
    """Make a folder and lock it until this process ends; return the lock. Raises OSError,
    PullFailed."""
    gives_up_at = time.monotonic() + LOCK_S
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # it was removed just now
            if (lock := try_lock(folder)) is not None:
                return lock
        if time.monotonic() > gives_up_at:
            text = f"another process on this machine is pulling {model} into the same folder"
            raise PullFailed("conflict", text)
        time.sleep(0.1)
