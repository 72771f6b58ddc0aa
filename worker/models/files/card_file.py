"""The notice about an invalid `card.toml`, with the names that the file gives its model.

Pure. `bus.models.cards` defines the contents of a card.
"""

from __future__ import annotations

import re
import tomllib
from itertools import islice
from typing import cast

from bus.models.cards import CARD_BYTES, MOST_ALIASES, BadCard
from bus.wire.ids import ModelId, is_model_id
from worker.models.passed_over import Unfit

_ALIASES = re.compile(r"(?m)^[ \t]*aliases[ \t]*=[ \t]*\[([^\]]*)")
_QUOTED = re.compile(r"""["']([^"'\n]*)["']""")


def refused(error: BadCard, data: bytes) -> Unfit:
    """Return the notice about an invalid card, with the aliases that can be read from its bytes;
    the model is served without the card."""
    why, _, hint = str(error).partition("; ")
    remedy = hint or "fix or delete it; shoal reads it again immediately"
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
