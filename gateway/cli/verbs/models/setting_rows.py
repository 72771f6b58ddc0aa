"""The settings of a model, as rows for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bus.models.cards import CARD, DEFAULT, resolved
from bus.wire.cards import ModelCard

SHOWN_CHARACTERS = 60


def rows(card: ModelCard) -> list[tuple[str, str]]:
    """Return the settings of a model's card, files and node."""
    return rows_of(resolved(card))


def rows_of(settings: Iterable[tuple[str, Any, str, str]]) -> list[tuple[str, str]]:
    """Return a table row for each (name, value, source, remark)."""
    lines: list[tuple[str, str]] = []
    for name, value, source, remark in settings:
        unsaid = "none" if source == DEFAULT else "as set"
        text = unsaid if value is None else str(value)
        short = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
        more = f"; {remark}" if remark and source == CARD else ""
        lines.append((name, f"{short} ({source}{more})"))
    return lines
