"""Talks to this node's disk: deletes a model's folder, where it is this home's own.

The one rule for `shoal rm` and for clients: what lies in a cache of other programs, or in a folder
that the settings name, is not this home's to delete from.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bus.wire.errors import ShoalError


class FolderKept(ShoalError):
    """A folder that is not deleted: why, and what to do."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def own_folder(folder: Path, models: Path) -> Path:
    """Return a model's folder, resolved, if it lies below `models`. Raises FolderKept otherwise."""
    real, root = folder.resolve(), models.resolve()
    if real == root or not real.is_relative_to(root):
        raise FolderKept(
            f"{folder} is not in {models}",
            remedy="delete it where it came from (a Hugging Face cache, another node's disk)",
        )
    if not real.is_dir():
        raise FolderKept(f"{folder} is not on this machine", remedy="run `shoal rm` on its node")
    return real


def delete_folder(folder: Path, models: Path) -> None:
    """Delete a folder that `own_folder` returned, and its owner's, where that is left empty.
    Raises FolderKept when the system forbids it."""
    try:
        shutil.rmtree(folder)
        if folder.parent != models.resolve() and not any(folder.parent.iterdir()):
            folder.parent.rmdir()
    except OSError as error:
        said = error.strerror or str(error)
        raise FolderKept(
            f"{folder} could not be deleted: {said}", remedy="see who owns it, and delete it there"
        ) from error
