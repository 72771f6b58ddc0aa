"""Talks to this node's disk: the `card.toml` in the folder of one model.

A card is written to a new file that replaces the old one in one step. The file's modification time
is set to the time of the change, which the writing gateway sends to all nodes. So the time is the
same on all nodes, even if their clocks differ.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from bus.models.cards import CARD_BYTES, CARD_FILE
from bus.models.model_folders import cached_repository
from bus.wire.cards import ModelCard
from bus.wire.errors import ShoalError

CONFIG = "config.json"
SAME_S = 1e-4
"""Times that differ by at most this are equal: a file's time is a float of nanoseconds."""


class CardKept(ShoalError):
    """A card cannot be changed on this node. The text says why and what to do."""


def folder_for_card(card: ModelCard) -> Path:
    """Return the folder of a model's card. Raises CardKept if shoal does not write into that
    folder."""
    folder = Path(card.path)
    if card.bundled:
        raise CardKept(
            f"{card.model} and its card are part of shoal; copy its folder into "
            "<data>/models under another name to get a copy with its own card"
        )
    if card.origin == "cache" or cached_repository(folder.resolve()) is not None:
        raise CardKept(
            f"{card.model} is in Hugging Face's cache, which shoal only reads; copy the folder "
            f"{folder} into <data>/models (cp -rL) to get a copy with its own card"
        )
    if not (folder / CONFIG).is_file():
        raise CardKept(f"{folder} no longer contains a model")
    if (folder / CARD_FILE).is_symlink():
        raise CardKept(f"{folder / CARD_FILE} is a link; change its target, or delete the link")
    return folder


def read_text(folder: Path) -> tuple[str, float] | None:
    """Return the text of a folder's `card.toml` (truncated at `CARD_BYTES`) and the time of its
    writing; None if the folder has none. Raises OSError."""
    try:
        with open(folder / CARD_FILE, "rb") as file:
            data, at_s = file.read(CARD_BYTES + 1), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
    return data[:CARD_BYTES].decode(errors="replace"), at_s


def write_text(folder: Path, text: str, at_s: float) -> None:
    """Write a folder's `card.toml`, dated `at_s` (seconds since 1970). Raises CardKept if a newer
    file exists, and OSError."""
    stored = read_text(folder)
    if stored is not None and stored[1] > at_s + SAME_S:
        raise CardKept("another card was written in the meantime; read it, then write again")
    new = folder / f".{CARD_FILE}.{secrets.token_hex(8)}.new"
    at_ns = round(at_s * 1e9)
    try:
        with open(new, "xb") as file:
            file.write(text.encode())
            file.flush()
            os.utime(file.fileno(), ns=(at_ns, at_ns))
            os.fsync(file.fileno())
        new.replace(folder / CARD_FILE)
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


def remove(folder: Path) -> bool:
    """Delete the `card.toml` of a folder. Return whether the folder had one. Raises OSError."""
    try:
        (folder / CARD_FILE).unlink()
    except FileNotFoundError:
        return False
    return True
