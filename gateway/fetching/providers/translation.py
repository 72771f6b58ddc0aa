"""Which translation a kind of provider needs.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bus.wire.ids import RequestId
from bus.wire.messages.requests import GenerationRequest
from bus.wire.tasks import ProviderKind, ProviderModel
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


def translated(asked: ProviderModel, request: GenerationRequest) -> TranslatedBody:
    """Return the body that asks a provider for a streamed answer. Raises HttpFaultRaised."""
    return _BODIES[asked.settings.kind](asked, request)


def hearing_of(asked: ProviderModel, request_id: RequestId) -> Hearing:
    """Return what makes entries of the answer's events."""
    return _HEARINGS[asked.settings.kind](request_id, asked.provider)
