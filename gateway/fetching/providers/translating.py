"""Translates a client's request into the provider's API, and converts the failures of that
translation to errors for the client. Pure."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import urlsplit

from bus.models.tasks import ProviderModel
from bus.translation import (
    BrokenStream,
    Filtered,
    NotCarried,
    Target,
    TranslatedBody,
    translated,
)
from bus.wire.messages.requests import GenerationRequest
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.fetching.providers.call import ProviderFailed

_OWN_HOSTS = ("openai.com", "openai.azure.com")
"""Hosts of OpenAI's own API, which accepts only `max_completion_tokens`, the newer name of the
token limit."""


def target_of(provided: ProviderModel) -> Target:
    """Return a provider's model as the target of a translation."""
    host = urlsplit(provided.settings.base_url).hostname or ""
    is_own = any(host == own or host.endswith(f".{own}") for own in _OWN_HOSTS)
    return Target(
        model=provided.model,
        kind=provided.settings.kind,
        name=f"the provider '{provided.provider}'",
        limit_name="max_completion_tokens" if is_own else "max_tokens",
    )


def provider_body(provided: ProviderModel, request: GenerationRequest) -> TranslatedBody:
    """Return the body of a request for a streamed answer. Raises HttpFaultRaised if the provider
    lacks one of its fields."""
    try:
        return translated(target_of(provided), request)
    except NotCarried as refused:
        fault = HttpFault(400, "unsupported", str(refused), field=refused.field)
        raise HttpFaultRaised(fault) from None


@contextmanager
def stream_faults() -> Generator[None]:
    """Raise ProviderFailed for a stream that is not valid, and HttpFaultRaised if the stream ends
    because the provider refuses to answer."""
    try:
        yield
    except BrokenStream as broken:
        raise ProviderFailed("broken", broken.text) from None
    except Filtered as filtered:
        raise HttpFaultRaised(HttpFault(400, "content_filter", str(filtered))) from None
