"""Selects the translation for a kind of provider: OpenAI's or Anthropic's.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bus.models.tasks import ProviderKind, ProviderModel
from bus.wire.ids import RequestId
from bus.wire.messages.requests import GenerationRequest
from gateway.fetching.providers.asking import TranslatedBody
from gateway.fetching.providers.asking_anthropic import anthropic_body
from gateway.fetching.providers.asking_openai import openai_body
from gateway.fetching.providers.hearing import AnthropicHearing, Hearing, OpenAIHearing

_BODIES: Mapping[ProviderKind, Callable[[ProviderModel, GenerationRequest], TranslatedBody]] = {
    "openai": openai_body,
    "anthropic": anthropic_body,
}
_HEARINGS: Mapping[ProviderKind, Callable[[RequestId, str], Hearing]] = {
    "openai": OpenAIHearing,
    "anthropic": AnthropicHearing,
}


def translated(target: ProviderModel, request: GenerationRequest) -> TranslatedBody:
    """Return the body of a request for a streamed answer. Raises HttpFaultRaised."""
    return _BODIES[target.settings.kind](target, request)


def hearing_of(target: ProviderModel, request_id: RequestId) -> Hearing:
    """Return the translator of the answer's events into entries."""
    return _HEARINGS[target.settings.kind](request_id, target.provider)
