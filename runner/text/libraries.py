"""Import in advance the libraries that tokenising needs."""

from __future__ import annotations

import contextlib
from importlib import import_module


def import_libraries() -> None:
    """Import the libraries of tokenizers and grammars. MLX is not imported, because the thread that
    owns MLX must import it first. Import errors are ignored; the code that needs the library raises
    them again."""
    for name in ("tokenizers", "llguidance"):
        with contextlib.suppress(ImportError):
            import_module(name)
