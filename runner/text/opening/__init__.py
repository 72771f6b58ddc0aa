"""Talks to the disk: opens the files of a tokenizer, with the cheaper of two readers if its result
is certainly right.

One reader uses only the library `tokenizers`; the other imports transformers. The tokenizer of a
GGUF file has a reader of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bus.models.gguf import weight_file
from runner.text.opening.alone import open_alone
from runner.text.opening.bounds import check_file
from runner.text.opening.opened import OpenedTokenizer, TokenizerError, panics_told, template_for
from runner.text.opening.sidecar import SIDECAR

__all__ = [
    "SIDECAR",
    "OpenedTokenizer",
    "TokenizerError",
    "check_file",
    "open_tokenizer",
    "panics_told",
    "template_for",
]


def open_tokenizer(
    path: Path, overrides: dict[str, str], end_ids: Sequence[int]
) -> OpenedTokenizer:
    """Return the content of the files in `path`. Uses `tokenizers` alone if it certainly gives the
    same result as transformers, else transformers, which is imported only then. `overrides` are
    settings for mlx-lm's parsers, and take precedence over those in the files. Raises
    TokenizerError."""
    check_file(path / "tokenizer.json")
    with panics_told():
        return _opened(path, overrides, end_ids)


def _opened(path: Path, overrides: dict[str, str], end_ids: Sequence[int]) -> OpenedTokenizer:
    if (gguf := _gguf_in(path)) is not None:
        from runner.text.opening.by_gguf import open_gguf

        return open_gguf(path / gguf, overrides.get("tool_parser_type"))
    try:
        return open_alone(path, overrides, end_ids)
    except Exception:  # unsure, or broken: transformers says what is wrong, in its own words
        from runner.text.opening.by_library import open_by_library

        return open_by_library(path, overrides, end_ids)


def _gguf_in(path: Path) -> str | None:
    """Return the GGUF file of a model without other weights; None if there is none."""
    names = [entry.name for entry in path.iterdir()]
    return None if any(path.glob("model*.safetensors")) else weight_file(names)
