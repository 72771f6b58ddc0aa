"""Talks to the disk: stores a model that is being fetched until it is complete.

`<models>/.staging/<digest>/` has `stage.json` (the model), and its files with the record of their
pieces (`worker.models.files.growing`). The finished model is renamed into place.

A staging folder with only some layers stays where it is. Its `stage.json` then lists those
`layers`, each after its pieces were hashed again and synced. Its files have their full sizes with
holes, so that a runner opens them like any others; a later fetch of more layers, or of the whole,
continues them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from bus.models.model_folders import STAGING
from bus.wire.ids import ModelId
from bus.wire.messages.weights import HASH_BYTES, PIECE_BYTES, FileEntry, Manifest
from worker.models.file_hashes import Interrupted, Stopped, hash_pieces, hash_whole, opened
from worker.models.files import GrowingFiles, Origin, note_origin, sync_folder
from worker.models.layer_bytes import SUFFIX, Layers, Range
from worker.models.local_models import files_of, held_layers, staged_model, stages_of
from worker.models.manifest import ggufs_of, piece_hash, piece_length
from worker.transfer.pieces import Piece, Staged

KEPT_S = 7 * 24 * 3600.0
"""A staging folder without progress for this many seconds (a week) is deleted."""


class PlaceTaken(Exception):
    """The folder that the model should get already exists and is not a model."""


class Stage:
    """The folder in which one manifest's files are stored until they are complete, below the models
    folder."""

    def __init__(self, models: Path, manifest: Manifest) -> None:
        self._models = models
        self._manifest = manifest
        self._folder = models / STAGING / manifest.digest
        self._entries = {entry.path: entry for entry in manifest.files}
        sizes = {entry.path: entry.size_bytes for entry in manifest.files}
        self._files = GrowingFiles(self._folder, sizes)

    def open(self, _stopped: Stopped) -> Staged:
        """Create the staging folder, or read the contents of an existing one. Earlier verifications
        of its files do not count, because the disk may have lost data since. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        intact = all(map(self._files.fits, self._entries))
        self._note(held_layers(self._folder) if intact else ())
        have: dict[str, bytes] = {}
        heads: dict[str, bytes] = {}
        for path in self._entries:
            have[path] = self._files.begin(path)[:-1]
            if path.endswith(SUFFIX) and have[path][:1] == b"\1":
                with open(self._files.path(path), "rb") as file:
                    heads[path] = file.read(PIECE_BYTES)
        return Staged(have, free_bytes(self._folder), heads)

    def write(self, piece: Piece, content: bytes) -> None:
        """Write a piece whose hash was verified, and record it as present. Raises OSError."""
        self._files.write(piece.path, piece.index, content)

    def check(
        self, path: str, stopped: Stopped, wanted: bytes | None = None
    ) -> tuple[int, ...] | None:
        """Hash a whole file, or its `wanted` pieces. Return () if all is right (and now synced),
        else the corrupt pieces; None if every piece is right but the whole file is not. Raises
        OSError, FileChanged, Interrupted."""
        entry = self._entries[path]
        with opened(self._files.path(path), os.O_RDWR) as file:
            if wanted is not None:
                bad = tuple(_spoilt(file, entry, wanted, stopped))
                os.fsync(file)
                return bad
            if hash_whole(file, entry.size_bytes, stopped) == entry.sha256:
                os.fsync(file)
                return ()
            _, pieces = hash_pieces(file, entry.size_bytes, _unheard, stopped)
        return tuple(_differing(pieces, entry.piece_hashes)) or None

    def spoil(self, path: str, bad: tuple[int, ...]) -> None:
        """Record that these pieces of a file are missing, because they are corrupt. Raises
        OSError."""
        self._note(())
        self._files.spoil(path, bad)

    def keep(self, layers: Layers, _stopped: Stopped) -> Path:
        """Record durably that everything that these layers need has arrived; return the folder from
        which a runner loads them. Raises OSError."""
        self._files.sync_folders()
        spans = {*held_layers(self._folder), (layers.first, layers.last)}
        self._note(tuple(sorted(spans)))
        sync_folder(self._folder)
        return self._files.files

    def publish(self, _stopped: Stopped, nodes: Iterable[str] = ()) -> Path:
        """Move the model into place, durably, with a record of its source nodes; return its folder.
        A complete model that another process put in that place meanwhile stays. Raises OSError,
        PlaceTaken."""
        target = self._models / self._manifest.model
        target.parent.mkdir(parents=True, exist_ok=True)
        if not _is_model(target):
            if target.exists():
                raise PlaceTaken(f"{target} already exists and is not a model; move it")
            hashes = {entry.path: entry.sha256 for entry in self._manifest.files}
            note_origin(self._files.files, Origin("copied", tuple(nodes), files=hashes))
            self._files.sync_folders()
            self._files.files.rename(target)
            sync_folder(target.parent)
            sync_folder(self._models)
        for digest in begun(self._models, self._manifest.model):
            shutil.rmtree(self._models / STAGING / digest, ignore_errors=True)
        return target

    def _note(self, layers: tuple[Range, ...]) -> None:
        note = {
            "model": self._manifest.model,
            "digest": self._manifest.digest,
            "layers": [list(span) for span in layers],
        }
        fresh = self._folder / "stage.new"
        with open(fresh, "w") as file:
            file.write(json.dumps(note))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._folder / "stage.json")


def begun(models: Path, model: ModelId) -> frozenset[str]:
    """Return the digests of this model's staging folders."""
    return frozenset(stage.name for stage in stages_of(models) if staged_model(stage) == model)


def sweep(models: Path, now_wall: float) -> None:
    """Delete staging folders that are useless: old ones without complete layers, and remains of a
    model's move into place."""
    for stage in stages_of(models):
        with contextlib.suppress(OSError):
            note = stage / "stage.json"
            lives = note.exists() and files_of(stage).exists()
            old = lives and now_wall - note.stat().st_mtime > KEPT_S
            if not lives or (old and not held_layers(stage)):
                shutil.rmtree(stage, ignore_errors=True)


def free_bytes(folder: Path) -> int:
    """Return the bytes that a user may still write on the disk of `folder`."""
    return shutil.disk_usage(folder).free


def _is_model(folder: Path) -> bool:
    has_weights = (folder / "config.json").exists() and any(folder.glob("*.safetensors"))
    return has_weights or bool(ggufs_of([path.name for path in folder.glob("*")]))


def _differing(actual: bytes, right: bytes) -> Iterator[int]:
    for at in range(0, len(right), HASH_BYTES):
        if actual[at : at + HASH_BYTES] != right[at : at + HASH_BYTES]:
            yield at // HASH_BYTES


def _spoilt(file: int, entry: FileEntry, wanted: bytes, stopped: Stopped) -> Iterator[int]:
    for index in (index for index, is_wanted in enumerate(wanted) if is_wanted):
        if stopped():
            raise Interrupted
        length = piece_length(entry.size_bytes, index)
        content = os.pread(file, length, index * PIECE_BYTES)
        if hashlib.sha256(content).digest() != piece_hash(entry, index):
            yield index


def _unheard(_done: int) -> None:
    """Ignore the progress of hashing."""
