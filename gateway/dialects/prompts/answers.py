"""What questions about prompts are answered with, as types.

Pure. The OpenAPI document shows these; what is rendered is held to them.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict


class TokenizeAnswer(TypedDict):
    """The tokens of a prompt, how many they are, and how many a loaded copy takes."""

    tokens: Sequence[int]
    count: int
    max_model_len: int


class DetokenizeAnswer(TypedDict):
    """The text of tokens, under the names that both servers have for it."""

    prompt: str
    content: str


class ApplyTemplateAnswer(TypedDict):
    """The text that a template makes of a conversation."""

    prompt: str
