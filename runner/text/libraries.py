"""Import beforehand the library whose import takes longest."""

from __future__ import annotations

import contextlib
from importlib import import_module


def import_libraries() -> None:
    """Import transformers, and what of it mlx-lm's tokenizers take, a second or two: not MLX, which
    the thread that is to own it imports first. What is missing is told by who needs it."""
    with contextlib.suppress(ImportError):
        transformers = import_module("transformers")
        for name in ("AutoTokenizer", "PreTrainedTokenizerFast"):
            getattr(transformers, name)
