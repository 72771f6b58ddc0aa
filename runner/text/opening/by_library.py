# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# (transformers and mlx-lm's wrapper are untyped)
"""Talks to transformers and mlx-lm: reads any tokenizer's files, with their own classes.

Downloads nothing and runs no code from the model directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.library import load_tokenizer, load_transformers
from runner.text.families import LibraryMarks
from runner.text.opening.opened import OpenedTokenizer, TokenizerError, marks
from runner.text.opening.sidecar import sidecar_template


def open_by_library(
    path: Path, overrides: dict[str, str], end_ids: Sequence[int]
) -> OpenedTokenizer:
    """Return the content of the files in `path`. `overrides` are settings for mlx-lm's parsers, and
    take precedence over those in the files. Raises TokenizerError."""
    try:
        sidecar = sidecar_template(path)
        if sidecar is not None:
            overrides = {**overrides, "chat_template": sidecar}
        base = load_transformers().PreTrainedTokenizerBase
        wrapper: Any = load_tokenizer(
            path,
            {"trust_remote_code": False, "local_files_only": True, **overrides},
            eos_token_ids=[*end_ids] or None,
        )
    except Exception as problem:  # foreign code, any of whose errors mean the same here
        raise TokenizerError(f"cannot open the tokenizer in {path}: {problem}") from problem
    hf: Any = wrapper._tokenizer
    if not hasattr(hf, "backend_tokenizer"):
        raise TokenizerError(f"{path}: only tokenizers with a tokenizer.json are supported")
    renders_itself = type(hf).apply_chat_template is not base.apply_chat_template
    return OpenedTokenizer(
        backend=hf.backend_tokenizer,
        encode=lambda text, special: hf.encode(text, add_special_tokens=special),
        decode=hf.decode,
        special_tokens={name: _plain(value) for name, value in hf.special_tokens_map.items()},
        end_ids=frozenset(wrapper.eos_token_ids),
        templates=hf.chat_template,
        has_template=bool(wrapper.has_chat_template),
        marks=LibraryMarks(
            think=marks(wrapper.think_start, wrapper.think_end),
            calls=marks(wrapper.tool_call_start, wrapper.tool_call_end),
            format=hf.init_kwargs.get("tool_parser_type"),
            parse=lambda text, tools: wrapper.tool_parser(text, list(tools) or None),
        ),
        streaming=lambda: wrapper.detokenizer,
        thinking_variable=wrapper._thinking_kwarg,
        own_prompt=wrapper.apply_chat_template
        if renders_itself or wrapper._chat_template is not None
        else None,
    )


def _plain(value: Any) -> Any:
    """Return a special token, or a list of special tokens, as plain text instead of the library's
    types."""
    return [str(item) for item in value] if isinstance(value, list | tuple) else str(value)
