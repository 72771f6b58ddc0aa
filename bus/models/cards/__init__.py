"""A model's `card.toml`: its keys, its text, and the settings that result. Pure: the caller reads
and writes the file.
"""

from bus.models.cards.fields import (
    CARD_BYTES,
    CARD_FILE,
    KNOWN_KEYS,
    MOST_ALIASES,
    BadCard,
    Notes,
    check_keys,
    notes_from,
    read_card,
)
from bus.models.cards.parsers import (
    LIBRARY_TOOL_PARSERS,
    REASONING_PARSERS,
    TOOL_PARSERS,
)
from bus.models.cards.resolved import CARD, DEFAULT, all_settings, resolved
from bus.models.cards.text import EXAMPLES, beginning, card_text, with_setting

__all__ = [
    "CARD",
    "CARD_BYTES",
    "CARD_FILE",
    "DEFAULT",
    "EXAMPLES",
    "KNOWN_KEYS",
    "LIBRARY_TOOL_PARSERS",
    "MOST_ALIASES",
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "BadCard",
    "Notes",
    "all_settings",
    "beginning",
    "card_text",
    "check_keys",
    "notes_from",
    "read_card",
    "resolved",
    "with_setting",
]
