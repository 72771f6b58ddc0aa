"""Families of models: how each family marks thinking and tool calls, and how its output is read.

Pure. A model's chat template and vocabulary decide its `Family`. No other package knows the names
of families.
"""

from __future__ import annotations

from runner.text.families.call_forms import CallForm, Pattern, Piece, Tags, Turns
from runner.text.families.choose import FOUND, Parsers, family_of
from runner.text.families.family import Family, LibraryMarks, Reader
from runner.text.families.json_text import object_of
from runner.text.families.spans import Call, Marks, Span
from runner.text.families.thinking import (
    ThinkingMeter,
    effort_levels,
    template_variables,
    thinking_limit,
)

__all__ = [
    "FOUND",
    "Call",
    "CallForm",
    "Family",
    "LibraryMarks",
    "Marks",
    "Parsers",
    "Pattern",
    "Piece",
    "Reader",
    "Span",
    "Tags",
    "ThinkingMeter",
    "Turns",
    "effort_levels",
    "family_of",
    "object_of",
    "template_variables",
    "thinking_limit",
]
