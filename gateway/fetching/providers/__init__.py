"""Talks to providers, the remote APIs that the operator configured: sends them a client's request.

The request's body is the client's own, or `bus.translation` makes it. The operator chooses the
base URL, so `gateway.fetching.policy` does not apply to it, and it can be on loopback. Redirects
are not followed, and no proxy is used. Only two of the client's headers are passed on
(`PASSED_HEADERS`). The HTTP client is imported at the first call.
"""

from gateway.fetching.providers.answer import ProviderAnswer
from gateway.fetching.providers.call import (
    CANCELLED,
    ProviderCall,
    ProviderFailed,
    ProviderRule,
    call_of,
    failure_within,
    refusal_of,
    speaks,
)
from gateway.fetching.providers.open_answers import OpenAnswers, OpenProviderRequest
from gateway.fetching.providers.translating import provider_body, stream_faults, target_of

__all__ = [
    "CANCELLED",
    "OpenAnswers",
    "OpenProviderRequest",
    "ProviderAnswer",
    "ProviderCall",
    "ProviderFailed",
    "ProviderRule",
    "call_of",
    "failure_within",
    "provider_body",
    "refusal_of",
    "speaks",
    "stream_faults",
    "target_of",
]
