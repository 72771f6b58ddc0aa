"""Talks to the disk: stores a model that is being pulled until it is complete and verified.

`<models>/.pulling/<owner>--<name>@<commit>/` has `pull.json` (the model), and its files with the
record of their pieces (`worker.models.files.growing`). The finished model is renamed into place.

A pull of only some layers stays where it is. Its `stage.json` then lists those `layers`, as that of
a copy from other nodes does (`worker.transfer.staging`), and `hashes` has the hashes of its pieces.
A later pull of more layers, or of the whole model, continues in that folder.
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

from bus.wire.messages.weights import PIECE_BYTES
from worker.models.files import (
    GrowingFiles,
    Origin,
    note_origin,
    origin_of,
    sync_folder,
    try_lock,
)
from worker.models.layer_bytes import SUFFIX, Layers
from worker.models.local_models import PULLING, STAGE_FILE, files_of, held_layers
from worker.pulling.fetching.piece_hashes import PieceHashes
from worker.pulling.listing import HubFile, HubListing, PullFailed

KEPT_S = 7 * 24 * 3600.0
"""A partial model without progress for this long is deleted."""
HASHED_AGAIN_BYTES = 64 << 20
"""Files up to this size are hashed again when a pull continues, because that is quick."""
LOCK_S = 10.0
"""An ending process of this node releases a partial model within this time."""


class Partial:
    """The partial model of one listing, below the models folder; locked by this process until it
    ends. `in_part`: only some layers are fetched, so pieces of weights are hashed. Raises OSError,
    and PullFailed if another process holds it."""

    def __init__(self, models: Path, listing: HubListing, *, in_part: bool = False) -> None:
        self._models = models
        self._in_part = in_part
        self._listing = listing
        self._folder = partial_folder(models, listing)
        self._name = self._folder.name.removesuffix(f"@{listing.commit}")
        sizes = {file.path: file.size_bytes for file in listing.files}
        self._files = GrowingFiles(self._folder, sizes)
        self._hashes = PieceHashes(self._folder, sizes)
        self._lock = _locked(self._folder, listing.model)

    def open(self) -> tuple[Mapping[str, bytes], Set[str]]:
        """Create the folder of the partial model, or read what an existing folder has: the pieces
        of each file, and the verified files. A piece without its hash does not count if the file is
        fetched in part. Small files count as verified only after they are
        hashed again, because anything may have changed them since an earlier process. Large files
        keep their status unless they were written to."""
        note = {"model": self._listing.model, "digest": self._listing.digest}
        if self._note() != note:
            self._forget_layers()
            shutil.rmtree(self._files.files, ignore_errors=True)
            (self._folder / "pull.json").write_text(json.dumps(note))
        have: dict[str, bytes] = {}
        checked: set[str] = set()
        if not all(self._files.fits(file.path) for file in self._listing.files):
            self._forget_layers()
        for file in self._listing.files:
            noted = self._files.begin(file.path)
            have[file.path] = noted[:-1]
            if self._hashes_pieces(file) and not all(noted[:-1]):
                have[file.path] = self._hashes.with_hashes(file.path, noted[:-1])
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
        if self._hashes_pieces(file):
            self._hashes.note(file.path, index, content)
        self._files.write(file.path, index, content)

    def heads(self) -> dict[str, bytes]:
        """Return the first piece of each safetensors file; all have arrived. Raises OSError."""
        heads: dict[str, bytes] = {}
        for file in self._listing.files:
            if file.path.endswith(SUFFIX):
                with open(self.path(file), "rb") as opened:
                    heads[file.path] = opened.read(PIECE_BYTES)
        return heads

    def find_damage(self, wanted: Mapping[str, bytes]) -> list[str]:
        """Compare the `wanted` pieces of files that were fetched in part with their hashes, and
        sync these files. Return the files with damaged pieces, which are missing from now on.
        Raises OSError."""
        paths: list[str] = []
        for file in self._listing.files:
            pieces = wanted.get(file.path)
            if pieces is None or all(pieces):
                continue
            path = self.path(file)
            if bad := self._hashes.differing(file.path, path, pieces):
                self._forget_layers()
                self._files.spoil(file.path, bad)
                paths.append(file.path)
            with open(path, "r+b") as opened:
                os.fsync(opened.fileno())
        return paths

    def keep(self, layers: Layers) -> None:
        """Record durably that everything which these layers need has arrived. Raises OSError."""
        self._note_origin({})
        self._files.sync_folders()
        spans = sorted({*held_layers(self._folder), (layers.first, layers.last)})
        note = {"model": self._listing.model, "digest": self._listing.digest, "layers": spans}
        fresh = self._folder / "stage.new"
        with open(fresh, "w") as file:
            file.write(json.dumps({**note, "count": layers.count}))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._folder / STAGE_FILE)
        sync_folder(self._folder)

    def note_whole(self, file: HubFile, *, is_right: bool) -> None:
        """Record that a whole file is correct and synced to disk, or that the file must be fetched
        from its beginning."""
        if not is_right:
            self._forget_layers()
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
        self._note_origin({file.path: file.digest for file in self._listing.files})
        self._files.sync_folders()
        os.replace(self._files.files, target)
        sync_folder(target.parent)
        sync_folder(self._models)
        for folder in (self._models / PULLING).glob(f"{self._name}@*"):
            shutil.rmtree(folder, ignore_errors=True)
        return target

    def _hashes_pieces(self, file: HubFile) -> bool:
        return self._in_part and file.path.endswith(SUFFIX)

    def _forget_layers(self) -> None:
        (self._folder / STAGE_FILE).unlink(missing_ok=True)

    def _note_origin(self, hashes: Mapping[str, str]) -> None:
        commit = self._listing.commit
        source = f"{self._listing.model}@{commit[:12]}"
        note_origin(self._files.files, Origin("pulled", (source,), commit, hashes))

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
    """Delete partial models without progress for a week, unless they hold complete layers."""
    with contextlib.suppress(FileNotFoundError):
        for folder in (models / PULLING).iterdir():
            with contextlib.suppress(OSError):
                old = now_wall - folder.stat().st_mtime > KEPT_S
                if old and not (held_layers(folder) and files_of(folder).exists()):
                    shutil.rmtree(folder, ignore_errors=True)


def delete_partial(models: Path, model: str) -> int:
    """Delete the partial files of a model, once no process writes them, unless they hold complete
    layers; return their bytes on the disk. Raises OSError, PullFailed."""
    owner, _, name = model.partition("/")
    size_bytes = 0
    for folder in (models / PULLING).glob(f"{glob.escape(f'{owner}--{name}')}@*"):
        lock = _locked(folder, model)
        try:
            if held_layers(folder):
                continue
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
