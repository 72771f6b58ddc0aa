"""What the files of one tokenizer say. Pure.

Two read them, and are held to the same answers: `alone` with the `tokenizers` library, `by_library`
with transformers and mlx-lm.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bus.wire.errors import ShoalError
from runner.text.detokenise import StreamingDecoder
from runner.text.families import LibraryMarks, Marks

Templates = str | Mapping[str, str] | None
"""A chat template, or several by their names; None where there is none."""


class TokenizerError(ShoalError):
    """The model directory holds no tokenizer that can be used here; the text says what is wrong."""


@contextmanager
def panics_told() -> Generator[None]:
    """Raise TokenizerError where the library of tokenizers panics, as it does for some expressions
    that match no character: what it raises then is no Exception, and would end a thread."""
    try:
        yield
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":
            raise
        raise TokenizerError(f"the tokenizer failed: {problem}") from problem


@dataclass(frozen=True, slots=True)
class OpenedTokenizer:
    """A tokenizer's files, read. `backend` is a `tokenizers.Tokenizer`.

    `encode` takes a text, and whether special tokens are put around it. `decode` returns the text
    of token ids, special tokens by their names. `special_tokens` are the texts of special tokens by
    what templates call them; `end_ids` the ids that end an output. `thinking_variable` is what
    templates call the wish to think. `own_prompt` is a library's code that writes prompts in the
    place of a template."""

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
    """Return the chat template for a conversation with `tools`, or without. Raises ValueError."""
    if templates is None:
        raise ValueError("the model has no chat template")
    if isinstance(templates, str):
        return templates
    name = "tool_use" if tools and "tool_use" in templates else "default"
    if name not in templates:
        raise ValueError(f"none of its chat templates is the default one: {sorted(templates)}")
    return templates[name]


def marks(start: str | None, end: str | None) -> Marks | None:
    """Return the marks around a span; None where nothing marks its beginning."""
    return None if start is None else Marks(start, end or "")
