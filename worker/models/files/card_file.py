"""Talks to the disk: reads a model's `card.toml`. If a file is invalid, a notice about it says so,
with the aliases that the file gives its model. `bus.models.cards` defines the contents of a card.
"""

from __future__ import annotations

import os
import re
import tomllib
from itertools import islice
from pathlib import Path
from typing import cast

from bus.models.cards import CARD_BYTES, CARD_FILE, MOST_ALIASES, BadCard, Notes, read_card
from bus.wire.ids import ModelId, is_model_id
from worker.models.passed_over import Unfit

_ALIASES = re.compile(r"(?m)^[ \t]*aliases[ \t]*=[ \t]*\[([^\]]*)")
_QUOTED = re.compile(r"""["']([^"'\n]*)["']""")


def notes_in(folder: Path) -> tuple[Notes, float, Unfit | None]:
    """Return the content of `card.toml`, the time when it was written, and None. An invalid file
    counts as missing; then the third value is a notice about it. Raises OSError."""
    try:
        with open(folder / CARD_FILE, "rb") as file:
            data, written_s = file.read(CARD_BYTES + 1), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return Notes(), 0.0, None
    try:
        return read_card(data), written_s, None
    except BadCard as error:
        return Notes(), 0.0, _refused(error, data)


def _refused(error: BadCard, data: bytes) -> Unfit:
    """Return the notice about an invalid card, with the aliases that can be read from its bytes;
    the model is served without the card."""
    why, _, hint = str(error).partition("; ")
    remedy = hint or "correct or delete card.toml; shoal reads it again at once"
    why = f"card.toml is invalid and has no effect: {why}"
    return Unfit("bad_card", why, remedy, _named_in(data[:CARD_BYTES]))


def _named_in(data: bytes) -> tuple[ModelId, ...]:
    """Return the aliases of an invalid card; if it is not TOML, the quoted words of the line that
    seems to list the aliases."""
    text = data.decode(errors="replace")
    try:
        aliases: object = tomllib.loads(text).get("aliases")
    except (ValueError, RecursionError):
        line = _ALIASES.search(text)
        aliases = _QUOTED.findall(line[1]) if line else []
    words = cast(list[object], aliases) if isinstance(aliases, list) else []
    names = (ModelId(word) for word in words if isinstance(word, str) and is_model_id(word))
    return tuple(islice(dict.fromkeys(names), MOST_ALIASES))
