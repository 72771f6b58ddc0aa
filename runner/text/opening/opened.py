"""The content of one tokenizer's files. Pure.

Two readers produce this content, and both must give the same result: `alone` with the `tokenizers`
library, `by_library` with transformers and mlx-lm.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from runner.text.detokenise import StreamingDecoder
from runner.text.families import LibraryMarks, Marks
from runner.text.prepared import TokenizerError

Templates = str | Mapping[str, str] | None
"""A chat template, or several by name; None if there is none."""


@contextmanager
def panics_told() -> Generator[None]:
    """Within the context, raise TokenizerError if the library of tokenizers panics, as it does for
    some regular expressions that match no character. A panic is not an Exception and would end the
    thread."""
    try:
        yield
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":
            raise
        raise TokenizerError(f"the tokenizer failed: {problem}") from problem


@dataclass(frozen=True, slots=True)
class OpenedTokenizer:
    """The content of a tokenizer's files. `backend` is a `tokenizers.Tokenizer`.

    `encode` takes a text, and whether to add special tokens around it; it may panic. `decode`
    returns the text of token ids, special tokens by name. `special_tokens` are the texts of special
    tokens by their template names; `end_ids` are the ids that end an output. `thinking_variable` is
    the template's variable for thinking. `own_prompt` is a library's code that writes prompts
    instead of a template.
    """

    backend: Any
    encode: Callable[[str, bool], list[int]]
    decode: Callable[[list[int]], str]
    special_tokens: Mapping[str, str]
    end_ids: frozenset[int]
    templates: Templates
    has_template: bool
    marks: LibraryMarks
    streaming: Callable[[], StreamingDecoder]
    thinking_variable: str = "enable_thinking"
    own_prompt: Callable[..., str] | None = field(default=None)


def template_for(templates: Templates, *, tools: bool) -> str:
    """Return the chat template for a conversation with or without `tools`. Raises ValueError."""
    if templates is None:
        raise ValueError("the model has no chat template")
    if isinstance(templates, str):
        return templates
    name = "tool_use" if tools and "tool_use" in templates else "default"
    if name not in templates:
        raise ValueError(f"none of its chat templates is named default: {sorted(templates)}")
    return templates[name]


def marks(start: str | None, end: str | None) -> Marks | None:
    """Return the marks around a span; None if there is no opening mark."""
    return None if start is None else Marks(start, end or "")
