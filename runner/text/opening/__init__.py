"""Talks to the disk: the files of a tokenizer, by the cheaper of two readers that will do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.text.opening.alone import open_alone
from runner.text.opening.opened import OpenedTokenizer, TokenizerError, template_for

__all__ = ["OpenedTokenizer", "TokenizerError", "open_tokenizer", "template_for"]


def open_tokenizer(path: Path, told: dict[str, str], end_ids: Sequence[int]) -> OpenedTokenizer:
    """Return what the files in `path` say: read with `tokenizers` alone where that is certain to be
    what transformers says, else by transformers, which is imported only then. `told` goes before
    what they say of mlx-lm's parsers. Raises TokenizerError."""
    try:
        return open_alone(path, told, end_ids)
    except Exception:  # unsure, or broken: transformers says what is wrong, in its own words
        from runner.text.opening.by_library import open_by_library

        return open_by_library(path, told, end_ids)
