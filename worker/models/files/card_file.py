"""What is said of a `card.toml` that is refused: the words, and the names that it would have given.

Pure. What a card may say stands in `bus.wire.model_cards`.
"""

from __future__ import annotations

import re
import tomllib
from itertools import islice
from typing import cast

from bus.wire.ids import ModelId, is_model_id
from bus.wire.model_cards import CARD_BYTES, MOST_ALIASES, BadCard
from worker.models.passed_over import Unfit

_ALIASES = re.compile(r"(?m)^[ \t]*aliases[ \t]*=[ \t]*\[([^\]]*)")
_QUOTED = re.compile(r"""["']([^"'\n]*)["']""")


def refused(error: BadCard, data: bytes) -> Unfit:
    """Return what is said of a card that is refused, with the aliases that its bytes give, as far
    as they can be read; the model is served without it."""
    why, _, hint = str(error).partition("; ")
    remedy = hint or "mend it, or take it away; it is read again at once"
    why = f"card.toml is refused, all of it: {why}"
    return Unfit("bad_card", why, remedy, _named_in(data[:CARD_BYTES]))


def _named_in(data: bytes) -> tuple[ModelId, ...]:
    """Return the aliases of a card that is refused: of one that is no TOML, the quoted words of
    what looks like their line."""
    text = data.decode(errors="replace")
    try:
        said: object = tomllib.loads(text).get("aliases")
    except (ValueError, RecursionError):
        line = _ALIASES.search(text)
        said = _QUOTED.findall(line[1]) if line else []
    words = cast(list[object], said) if isinstance(said, list) else []
    names = (ModelId(one) for one in words if isinstance(one, str) and is_model_id(one))
    return tuple(islice(dict.fromkeys(names), MOST_ALIASES))
