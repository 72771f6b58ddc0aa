"""Types of the answers to questions about prompts.

Pure. The OpenAPI document shows them; tests check rendered answers against them.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict


class TokenizeAnswer(TypedDict):
    """A prompt's tokens, their number, and the context of an instance in tokens."""

    tokens: Sequence[int]
    count: int
    max_model_len: int


class DetokenizeAnswer(TypedDict):
    """The text of tokens, under the field names of both vLLM's and llama.cpp's servers."""

    prompt: str
    content: str


class ApplyTemplateAnswer(TypedDict):
    """A conversation as text, rendered by the template."""

    prompt: str
