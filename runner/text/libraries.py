"""Import beforehand the libraries that read text."""

from __future__ import annotations

import contextlib
from importlib import import_module


def import_libraries() -> None:
    """Import the libraries of tokenizers and grammars: not MLX, which the thread that is to own it
    imports first. What is missing is told by who needs it."""
    for name in ("tokenizers", "llguidance"):
        with contextlib.suppress(ImportError):
            import_module(name)
