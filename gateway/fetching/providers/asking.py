"""Translates a request for a provider: the steps that are the same for all providers, and the
refusal of fields that a provider lacks.

Pure. A field that the provider's API lacks is refused if the answer would be wrong without it.
Otherwise the field is listed as ignored. No field is dropped silently.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    Sampling,
    TextPart,
)
from gateway.dialects.faults import HttpFault, HttpFaultRaised

REASONING = "messages.reasoning"
"""How the list of ignored fields names earlier thinking. A provider accepts only thinking that it
signed itself, or no thinking at all."""
_NAMES = {"variables": "chat_template_kwargs"}
OUR_FIELDS = ("ignore_eos", "min_tokens", "variables")
"""Fields that only models of the cluster support."""


@dataclass(frozen=True, slots=True)
class TranslatedBody:
    """The body for a provider, and the paths of the request's fields that the provider ignores."""

    fields: dict[str, Any]
    unheeded: tuple[str, ...]


def not_carried(field: str, why: str) -> HttpFaultRaised:
    """Return the refusal of a field that the provider does not support."""
    return HttpFaultRaised(HttpFault(400, "unsupported", f"{field}: {why}", field=field))


def conversation_of(request: GenerationRequest) -> ChatPrompt:
    """Return the conversation of a request. Raises HttpFaultRaised if it has none, or if no
    provider supports a field of it."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        why = "a provider's model accepts only conversations; use POST /v1/chat/completions"
        raise not_carried("prompt", why)
    if request.history:
        raise not_carried("history", "tokens of an earlier answer mean nothing to another model")
    if request.top_logprobs is not None:
        raise not_carried("logprobs", "providers return no log-probabilities")
    return prompt


def unheeded_of(
    request: GenerationRequest, prompt: ChatPrompt, supported: Collection[str]
) -> list[str]:
    """Return the paths of the request's fields that the provider ignores. `supported`: the sampling
    fields that the provider supports."""
    sampling, plain = request.sampling, Sampling()
    unheeded = [
        name
        for name in sampling.model_fields_set
        if name not in supported and getattr(sampling, name) != getattr(plain, name)
    ]
    unheeded += [_NAMES.get(name, name) for name in OUR_FIELDS if getattr(request, name)]
    if any(turn.reasoning for turn in prompt.messages):
        unheeded.append(REASONING)
    return sorted(unheeded)


def sampled(sampling: Sampling, names: Collection[str]) -> dict[str, Any]:
    """Return the sampling fields among `names` that the client set."""
    return {name: getattr(sampling, name) for name in names if name in sampling.model_fields_set}


def text_of(turn: ChatMessage) -> str:
    return "".join(part.text for part in turn.parts if isinstance(part, TextPart))


def answered_call(turn: ChatMessage, open_calls: Sequence[str]) -> str:
    """Return the id of the call that a tool's turn answers. That is the call that the turn names,
    else the next call without an answer. Raises HttpFaultRaised if there is no such call."""
    call_id = turn.tool_call_id or next(iter(open_calls), None)
    if call_id is None:
        raise not_carried("messages", "a tool's answer has no matching call before it")
    return call_id
