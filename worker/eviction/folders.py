"""Talks to the disk: what of a fetched model's folder was not fetched, and how it is put aside. A
`card.toml` keeps no folder here: another node's copy has to have the same one.

A folder goes by the steps of `bus.model_folders`, those of `shoal rm`; here is what has to be so
besides when the machine decides that, not a person.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

from bus.model_folders import own_folder, put_aside, put_back
from bus.process.clock import now
from bus.wire.errors import ShoalError
from bus.wire.messages.weights import KeepAsked
from bus.wire.model_cards import CARD_FILE
from worker.eviction.grants import Content
from worker.models.files import ORIGIN_FILE, origin_of

HASH_DIGITS = 64
LATER_NS = 2_000_000_000
"""A file that changed so much later than its model came was changed by a person."""
OF_SYSTEMS = (ORIGIN_FILE, ".DS_Store")


class NotLetGo(ShoalError):
    """A folder that stays, and why."""


def added_to(folder: Path) -> str:
    """Return what in a fetched model's folder did not come with it, or was changed since, in words;
    empty where there is nothing. Raises OSError."""
    origin = origin_of(folder)
    if origin.how not in ("copied", "pulled") or not origin.files:
        return "nothing says file by file that shoal fetched it"
    came_ns = (folder / ORIGIN_FILE).stat().st_mtime_ns
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name in OF_SYSTEMS or (path.is_dir() and not path.is_symlink()):
            continue
        if name == CARD_FILE and not path.is_symlink():
            continue
        if name not in origin.files or path.is_symlink():
            return f"{name} in its folder was put there by a person"
        if path.stat().st_mtime_ns > came_ns + LATER_NS:
            return f"{name} in its folder was changed by a person"
    return ""


def content_of(folder: Path) -> Content:
    """Return what tells a copy from others of the same shape. Raises OSError."""
    card, at_s = _card(folder)
    return Content(weights_of(folder), card, at_s)


def _card(folder: Path) -> tuple[str, float]:
    try:
        with open(folder / CARD_FILE, "rb") as file:
            return sha256(file.read()).hexdigest(), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return "", 0.0


def weights_of(folder: Path) -> str:
    """Return what tells the weights of a fetched model from others of the same shape, by the hashes
    that they came with; empty where those are not known."""
    files = origin_of(folder).files
    weights = {name: value for name, value in files.items() if name.endswith(".safetensors")}
    if not weights or any(len(value) != HASH_DIGITS for value in weights.values()):
        return ""
    return sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest()


def is_whole(folder: Path, size_bytes: int) -> bool:
    """Return whether a model of so many bytes of weights lies there now."""
    try:
        found = sum(file.stat().st_size for file in folder.glob("model*.safetensors"))
        return (folder / "config.json").exists() and found >= size_bytes
    except OSError:
        return False


def lacking(folder: Path, size_bytes: int, asked: KeepAsked) -> str:
    """Return why the copy in a folder is none that could be kept for another one. A card is kept
    where the same lies here, no older: whichever of all is the newest stays so. Raises OSError."""
    if not is_whole(folder, size_bytes):
        return "its copy is not whole"
    own = content_of(folder)
    if asked.content and own.weights and own.weights != asked.content:
        return "its copy has another content"
    if asked.card and own.card != asked.card:
        return f"its copy has {'another' if own.card else 'no'} {CARD_FILE}"
    if asked.card and own.card_at_s < asked.card_at_s:
        return f"its copy has an older {CARD_FILE}"
    return ""


def put_away(
    folder: Path, models: Path, until_at: float, content: Content | None
) -> tuple[Path, Path]:
    """Move a folder out of sight before `until_at`, on `bus.process.clock`; returns it, resolved,
    and where it is. `content` is what was granted; None: it is no whole copy. Raises NotLetGo,
    FolderKept, OSError, with the folder in its place."""
    real = own_folder(folder, models)
    if content is not None:
        if why := added_to(real):
            raise NotLetGo(why)
        if content_of(real) != content:
            raise NotLetGo(f"its {CARD_FILE}, or what it is made of, was changed meanwhile")
    if now() >= until_at:
        raise NotLetGo("the disk was too slow: the word of another node is too old")
    aside = put_aside(real, models)
    if now() >= until_at:  # this process stood still between the two
        put_back(aside, real)
        raise NotLetGo("the disk was too slow: the word of another node is too old")
    return real, aside
