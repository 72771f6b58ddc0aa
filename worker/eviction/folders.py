"""Talks to the disk: detects files that were added to a fetched model's folder, and moves folders
aside. An added `card.toml` does not keep a folder from deletion, because the other node's copy must
have the same `card.toml`.

A folder is deleted by the steps of `bus.models.model_folders`, as in `shoal rm`. This module has
the additional conditions for deletions that no person requested.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

from bus.models.cards import CARD_FILE
from bus.models.gguf import is_gguf
from bus.models.model_folders import own_folder, put_aside, put_back
from bus.process.clock import now
from bus.wire.errors import ShoalError
from bus.wire.messages.weights import KeepAsked
from worker.eviction.grants import Content
from worker.models.files import ORIGIN_FILE, origin_of
from worker.models.passed_over import CONFIG, ggufs_among, weights_among

HASH_DIGITS = 64
LATER_NS = 2_000_000_000
"""A file that changed this much later than its model arrived was changed by a person."""
OF_SYSTEMS = (ORIGIN_FILE, ".DS_Store")


class NotLetGo(ShoalError):
    """The folder must not be deleted; `args[0]` says why."""


def added_to(folder: Path) -> str:
    """Return a text that lists the files which were added or changed in a model's folder since the
    model was fetched; empty if there are none. Raises OSError."""
    origin = origin_of(folder)
    if origin.how not in ("copied", "pulled") or not origin.files:
        return "shoal has no record that it fetched these files"
    came_ns = (folder / ORIGIN_FILE).stat().st_mtime_ns
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name in OF_SYSTEMS or (path.is_dir() and not path.is_symlink()):
            continue
        if name == CARD_FILE and not path.is_symlink():
            continue
        if name not in origin.files or path.is_symlink():
            return f"{name} in its folder was added by a person"
        if path.stat().st_mtime_ns > came_ns + LATER_NS:
            return f"{name} in its folder was changed by a person"
    return ""


def content_of(folder: Path) -> Content:
    """Return the digests of the weights and the `card.toml` in a folder, to compare it with other
    copies of the model. Raises OSError."""
    card, at_s = _card(folder)
    return Content(weights_of(folder), card, at_s)


def _card(folder: Path) -> tuple[str, float]:
    try:
        with open(folder / CARD_FILE, "rb") as file:
            return sha256(file.read()).hexdigest(), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return "", 0.0


def weights_of(folder: Path) -> str:
    """Return a digest of a fetched model's weights, from the hashes that were recorded when the
    files arrived; empty if unknown."""
    files = origin_of(folder).files
    weights = {
        name: value
        for name, value in files.items()
        if name.endswith(".safetensors") or is_gguf(name)
    }
    if not weights or any(len(value) != HASH_DIGITS for value in weights.values()):
        return ""
    return sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest()


def is_whole(folder: Path, size_bytes: int) -> bool:
    """Return whether a model with this many bytes of weights is complete on the disk now."""
    try:
        names = {file.name for file in folder.iterdir()}
        is_loadable = CONFIG in names or bool(ggufs_among(names))
        present_bytes = sum((folder / name).stat().st_size for name in weights_among(names))
        return is_loadable and present_bytes >= size_bytes
    except OSError:
        return False


def lacking(folder: Path, size_bytes: int, question: KeepAsked) -> str:
    """Return why this node's copy in `folder` cannot replace the copy of the node that asks; empty
    if it can. Its `card.toml` must be the same and no older, so that the newest `card.toml` is
    kept. Raises OSError."""
    if not is_whole(folder, size_bytes):
        return "the node's copy is incomplete"
    own = content_of(folder)
    if question.content and own.weights and own.weights != question.content:
        return "the node's copy has other content"
    if question.card and own.card != question.card:
        return f"the node's copy has {'a different' if own.card else 'no'} {CARD_FILE}"
    if question.card and own.card_at_s < question.card_at_s:
        return f"the node's copy has an older {CARD_FILE}"
    return ""


def put_away(
    folder: Path, models: Path, until_at: float, content: Content | None
) -> tuple[Path, Path]:
    """Move a folder aside before the instant `until_at` of `bus.process.clock`; return its resolved
    path and its new path. `content` identifies the copy that another node allowed to delete; None
    if the copy is incomplete. Raises NotLetGo, FolderKept, OSError; after an error the folder is in
    its original place."""
    real = own_folder(folder, models)
    if content is not None:
        if why := added_to(real):
            raise NotLetGo(why)
        if content_of(real) != content:
            raise NotLetGo(f"the model's {CARD_FILE} or its list of files changed meanwhile")
    if now() >= until_at:
        raise NotLetGo("the disk was too slow: the other node's confirmation expired")
    aside = put_aside(real, models)
    if now() >= until_at:  # this process stood still between the two
        put_back(aside, real)
        raise NotLetGo("the disk was too slow: the other node's confirmation expired")
    return real, aside
