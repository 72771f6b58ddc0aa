"""Import in advance the libraries that tokenising needs."""

from __future__ import annotations

import contextlib
from importlib import import_module


def import_libraries() -> None:
    """Import the libraries of tokenizers and grammars, but not MLX, which its owning thread must
    import first. Errors are left to the code that needs the library."""
    for name in ("tokenizers", "llguidance"):
        with contextlib.suppress(ImportError):
            import_module(name)
