"""Keeps special tokens that a client writes in a message as plain text. Only the template can write
control tokens.

Pure, except the library of tokenizers. It knows messages, added tokens and rendered prompts, but no
template and no family (decision 0076).
"""

from __future__ import annotations

from runner.text.markup.marking import Marking, marking_of, spans_in
from runner.text.markup.spellings import AddedText, Markup, Span, find_markup
from runner.text.markup.twin import Twin

__all__ = [
    "AddedText",
    "Marking",
    "Markup",
    "Span",
    "Twin",
    "find_markup",
    "marking_of",
    "spans_in",
]
