"""Lists the fields that the dialects' published schemas have, from the official clients' types.

    python -m tests.harness.published_fields

prints the names that `gateway/dialects/published_fields.py` lacks, to be added there with the day.
Response types are not looked at: what matters is what clients may send.
"""

from __future__ import annotations

import inspect
import typing
from types import ModuleType
from typing import Any

import anthropic.types.beta.message_create_params as anthropic_beta
import anthropic.types.message_count_tokens_params as anthropic_count
import anthropic.types.message_create_params as anthropic_create
import ollama
import openai.types.chat.completion_create_params as openai_chat
import openai.types.completion_create_params as openai_completions
import openai.types.embedding_create_params as openai_embeddings
import openai.types.responses.response_create_params as openai_responses
from typing_extensions import get_type_hints, is_typeddict

from gateway.dialects.published_fields import PUBLISHED_FIELDS

MODULES = (
    anthropic_beta, anthropic_count, anthropic_create, openai_chat, openai_completions,
    openai_embeddings, openai_responses,
)  # fmt: skip
SENT_TO_OLLAMA = ("ChatRequest", "GenerateRequest", "EmbedRequest", "EmbeddingsRequest", "Options")


def published() -> set[str]:
    """Return the names of all fields of all objects that the clients' types let one send."""
    names: set[str] = set()
    seen: set[Any] = set()
    for module in MODULES:
        for kind in _kinds(module):
            _gather(kind, names, seen)
    for name in SENT_TO_OLLAMA:
        kind = getattr(ollama, name, None) or getattr(ollama._types, name)  # pyright: ignore
        names |= set(kind.model_fields)
    return names


def _kinds(module: ModuleType) -> list[Any]:
    return [kind for kind in vars(module).values() if is_typeddict(kind)]


def _gather(kind: Any, names: set[str], seen: set[Any]) -> None:
    """Add the fields of a type, and of every type that stands in it. Recursive; each type once."""
    for part in typing.get_args(kind):
        _gather(part, names, seen)
    if inspect.isclass(kind) and is_typeddict(kind) and kind not in seen:
        seen.add(kind)
        hints = get_type_hints(kind)
        names |= set(hints)
        for part in hints.values():
            _gather(part, names, seen)


if __name__ == "__main__":
    print("\n".join(sorted(published() - PUBLISHED_FIELDS)))
