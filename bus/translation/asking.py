"""Translates a request: the steps that are the same for all servers, and the refusal of fields that
a server lacks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from bus.translation.target import REASONING, TEMPLATE_FIELD, Target
from bus.translation.troubles import NotCarried
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    Sampling,
    TextPart,
)

MAX_TOKENS = 4096
"""The limit of an answer if the client sets none and the API needs one."""
_NAMES = {"variables": TEMPLATE_FIELD}
OUR_FIELDS = ("ignore_eos", "min_tokens", "variables")
"""Fields of a request that only models of the cluster support."""


@dataclass(frozen=True, slots=True)
class TranslatedBody:
    """The body for a server, and the paths of the request's fields that the server ignores. `path`:
    where to POST it, from the server's root."""

    fields: dict[str, Any]
    unheeded: tuple[str, ...]
    path: str


def conversation_of(target: Target, request: GenerationRequest) -> ChatPrompt:
    """Return the conversation of a request. Raises NotCarried if it has none, or if the server
    lacks one of its fields."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        why = "a provider's model accepts only conversations; use POST /v1/chat/completions"
        raise NotCarried("prompt", why)
    if request.history:
        raise NotCarried("history", "tokens of an earlier answer mean nothing to another model")
    if request.top_logprobs is not None and not target.completes:
        raise NotCarried("logprobs", "providers return no log-probabilities")
    return prompt


def unheeded_of(
    request: GenerationRequest, prompt: ChatPrompt | None, supported: Collection[str]
) -> list[str]:
    """Return the paths of the request's fields that the server ignores. `supported`: the fields
    that it supports."""
    sampling, plain = request.sampling, Sampling()
    unheeded = [
        name
        for name in sampling.model_fields_set
        if name not in supported and getattr(sampling, name) != getattr(plain, name)
    ]
    names = ((_NAMES.get(name, name), getattr(request, name)) for name in OUR_FIELDS)
    unheeded += [name for name, value in names if value and name not in supported]
    if prompt is not None and REASONING not in supported:
        unheeded += [REASONING] if any(turn.reasoning for turn in prompt.messages) else []
    return sorted(unheeded)


def sampled(request: GenerationRequest, names: Collection[str]) -> dict[str, Any]:
    """Return the sampling fields among `names` that the client set."""
    sampling = request.sampling
    return {name: getattr(sampling, name) for name in names if name in sampling.model_fields_set}


def text_of(turn: ChatMessage) -> str:
    return "".join(part.text for part in turn.parts if isinstance(part, TextPart))


def answered_call(turn: ChatMessage, open_calls: Sequence[str]) -> str:
    """Return the id of the call that a tool's turn answers. That is the call that the turn names,
    else the next call without an answer. Raises NotCarried if there is no such call."""
    call_id = turn.tool_call_id or next(iter(open_calls), None)
    if call_id is None:
        raise NotCarried("messages", "a tool's answer has no matching call before it")
    return call_id
