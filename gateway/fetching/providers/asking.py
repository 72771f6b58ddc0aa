"""What a request in no dialect is to a provider: what is carried alike, and what cannot be.

Pure. What a provider's API has no words for is refused where an answer without it would be wrong,
and else named as ignored; nothing is left out unsaid.
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
"""What earlier thinking is called where it is left out: a provider takes back only what it signed,
or none."""
_NAMES = {"variables": "chat_template_kwargs"}
_OWN_ALONE = ("ignore_eos", "min_tokens", "variables")
"""What only a model of the cluster can do."""


@dataclass(frozen=True, slots=True)
class TranslatedBody:
    """A provider's body, and the paths of what it has no words for."""

    fields: dict[str, Any]
    unheeded: tuple[str, ...]


def not_carried(field: str, why: str) -> HttpFaultRaised:
    """Return the refusal of a field that a provider cannot be told."""
    return HttpFaultRaised(HttpFault(400, "unsupported", f"{field}: {why}", field=field))


def conversation_of(request: GenerationRequest) -> ChatPrompt:
    """Return the conversation of a request. Raises HttpFaultRaised where it is none, or asks for
    what no provider can be asked."""
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
    request: GenerationRequest, prompt: ChatPrompt, known: Collection[str]
) -> list[str]:
    """Return the paths of what has no effect: of the sampling all but `known`."""
    sampling, plain = request.sampling, Sampling()
    found = [
        name
        for name in sampling.model_fields_set
        if name not in known and getattr(sampling, name) != getattr(plain, name)
    ]
    found += [_NAMES.get(name, name) for name in _OWN_ALONE if getattr(request, name)]
    if any(turn.reasoning for turn in prompt.messages):
        found.append(REASONING)
    return sorted(found)


def sampled(sampling: Sampling, names: Collection[str]) -> dict[str, Any]:
    """Return what the client said of these fields of the sampling."""
    return {name: getattr(sampling, name) for name in names if name in sampling.model_fields_set}


def text_of(turn: ChatMessage) -> str:
    """Return the text of a turn."""
    return "".join(part.text for part in turn.parts if isinstance(part, TextPart))


def answered_call(turn: ChatMessage, open_calls: Sequence[str]) -> str:
    """Return the id of the call that a tool's turn answers; the next open one where it names none.
    Raises HttpFaultRaised where there is none."""
    found = turn.tool_call_id or next(iter(open_calls), None)
    if found is None:
        raise not_carried("messages", "a tool's answer has no matching call before it")
    return found
