"""Talks to the disk: where a model that is being pulled grows, until it is whole and right.

`<models>/.pulling/<owner>--<name>@<commit>/` holds `pull.json` (what it is of), `files/<path>`
(sparse until filled) and `have/<number>`: a byte for each piece of a file, 1 once it is written,
and one more for the whole file, 1 once its hash was found right and it was synced. A piece is
written before the byte that speaks of it, so a process killed at any moment loses at most what was
under way; what a power failure took is found by the file's hash. The model is moved into its place
in one step.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping, Set
from pathlib import Path

from bus.wire.messages.weights import PIECE_BYTES
from worker.models.files import note_origin
from worker.pulling.files import pieces_of
from worker.pulling.listing import HubFile, HubListing, PullFailed
from worker.transfer.staging import put_bytes, sync_folder

FOLDER = ".pulling"
PULLED_FILE = ".pulled.json"
"""Beside a pulled model's files: where it came from."""
KEPT_S = 7 * 24 * 3600.0
"""A partial model that nobody went on with for so long is removed."""
LOCK_S = 10.0
"""A process of this node that is ending has let go of a partial model within this."""


class Partial:
    """The partial model of one listing, below the folder of all models; locked for this process
    until that ends. Raises OSError, and PullFailed where another process has it."""

    def __init__(self, models: Path, listing: HubListing) -> None:
        self._models = models
        self._listing = listing
        owner, _, name = listing.model.partition("/")
        self._name = f"{owner}--{name}"
        self._folder = models / FOLDER / f"{self._name}@{listing.commit}"
        self._files = self._folder / "files"
        self._numbers = {one.path: n for n, one in enumerate(listing.files)}
        (self._folder / "have").mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self._folder / "lock", listing)

    def open(self) -> tuple[Mapping[str, bytes], Set[str]]:
        """Make it, or find what it holds: of each file its pieces, and the files found right."""
        note = {"model": self._listing.model, "digest": self._listing.digest}
        if self._note() != note:
            shutil.rmtree(self._files, ignore_errors=True)
            (self._folder / "pull.json").write_text(json.dumps(note))
        have: dict[str, bytes] = {}
        checked: set[str] = set()
        for file in self._listing.files:
            path = self._files / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            noted = self._begin(file, path)
            have[file.path] = noted[:-1]
            if noted[-1]:
                checked.add(file.path)
        os.utime(self._folder)
        return have, checked

    def path(self, file: HubFile) -> Path:
        """Return where a file grows."""
        return self._files / file.path

    def write(self, file: HubFile, index: int, content: bytes) -> None:
        """Write a piece, then note that it is there."""
        put_bytes(self.path(file), content, index * PIECE_BYTES)
        put_bytes(self._have(file.path), b"\1", index)

    def found(self, file: HubFile, *, is_right: bool) -> None:
        """Note that a whole file is right, now synced; or that nothing of it is there."""
        count = pieces_of(file.size_bytes)
        if not is_right:
            self._have(file.path).write_bytes(bytes(count + 1))
            return
        with open(self.path(file), "r+b") as opened:
            os.fsync(opened.fileno())
        put_bytes(self._have(file.path), b"\1", count)

    def publish(self) -> Path:
        """Move the model into its place, durably; returns it. Raises OSError, PullFailed."""
        target = self._models / self._listing.model
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink() or (target.exists() and any(target.iterdir())):
            text = f"{target} is in the way: move it, or remove it with `shoal rm`"
            raise PullFailed("conflict", text)
        said = {"model": self._listing.model, "revision": self._listing.commit}
        (self._files / PULLED_FILE).write_text(json.dumps(said))
        hashes = {one.path: one.digest for one in self._listing.files if one.kind == "sha256"}
        source = f"{self._listing.model}@{self._listing.commit[:12]}"
        note_origin(self._files, "pulled", [source], hashes)
        for folder in {self._files, *(self.path(one).parent for one in self._listing.files)}:
            sync_folder(folder)
        os.replace(self._files, target)
        sync_folder(target.parent)
        sync_folder(self._models)
        for folder in (self._models / FOLDER).glob(f"{self._name}@*"):
            shutil.rmtree(folder, ignore_errors=True)
        return target

    def _begin(self, file: HubFile, path: Path) -> bytes:
        """Return what is noted of a file, all 0 where note and file do not fit each other."""
        count = pieces_of(file.size_bytes) + 1
        note = self._have(file.path)
        with contextlib.suppress(FileNotFoundError):
            if not path.is_symlink() and path.stat().st_size == file.size_bytes:
                found = note.read_bytes()
                if len(found) == count:
                    return found
        path.unlink(missing_ok=True)
        with open(path, "xb") as made:
            made.truncate(file.size_bytes)
        note.write_bytes(bytes(count))
        return bytes(count)

    def _note(self) -> object:
        try:
            return json.loads((self._folder / "pull.json").read_text())
        except (OSError, ValueError):
            return None

    def _have(self, path: str) -> Path:
        return self._folder / "have" / str(self._numbers[path])


def pulled_revision(folder: Path) -> str | None:
    """Return the commit that the model in a folder was pulled at; None where it was not pulled."""
    try:
        found = json.loads((folder / PULLED_FILE).read_text())
        return str(found["revision"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def sweep_partial(models: Path, now_wall: float) -> None:
    """Remove partial models that no pull went on with for a week."""
    with contextlib.suppress(FileNotFoundError):
        for folder in (models / FOLDER).iterdir():
            with contextlib.suppress(OSError):
                if now_wall - folder.stat().st_mtime > KEPT_S:
                    shutil.rmtree(folder, ignore_errors=True)


def _locked(path: Path, listing: HubListing) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    gives_up_at = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > gives_up_at:
                os.close(lock)
                text = f"another process of this machine pulls {listing.model} into the same folder"
                raise PullFailed("conflict", text) from None
        time.sleep(0.1)
