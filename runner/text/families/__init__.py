"""Families of models: how each marks its thinking and its tool calls, and what reads them.

Pure. One `Family` for a model, chosen by its template and its vocabulary; no other room knows the
name of one.
"""

from __future__ import annotations

from runner.text.families.choose import family_of
from runner.text.families.family import Family, LibraryMarks, Reader
from runner.text.families.spans import Call, Marks, Span

__all__ = ["Call", "Family", "LibraryMarks", "Marks", "Reader", "Span", "family_of"]
