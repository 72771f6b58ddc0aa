"""Selects the translation for a kind of server. Pure."""

from __future__ import annotations

from bus.translation.asking import TranslatedBody
from bus.translation.asking_anthropic import anthropic_body
from bus.translation.asking_openai import openai_body
from bus.translation.hearing import Hearing
from bus.translation.hearing_anthropic import AnthropicHearing
from bus.translation.hearing_openai import OpenAIHearing
from bus.translation.target import Target
from bus.translation.troubles import NotCarried
from bus.wire.ids import RequestId
from bus.wire.messages.requests import GenerationRequest


def translated(target: Target, request: GenerationRequest) -> TranslatedBody:
    """Return the body of a request for a streamed answer. Raises NotCarried."""
    if request.speculate not in (None, "auto", "off"):
        why = "shoal drafts no tokens for other engines; use auto or off"
        raise NotCarried("x_speculate", why)
    body = anthropic_body if target.kind == "anthropic" else openai_body
    return body(target, request)


def hearing_of(target: Target, request_id: RequestId, choices: int = 1) -> Hearing:
    """Return the translator of the answer's events into entries. `choices`: how many the request
    wants (`n`)."""
    kind = AnthropicHearing if target.kind == "anthropic" else OpenAIHearing
    return kind(target, request_id, choices)
