"""Talks to providers, the remote APIs that the operator configured: sends them a client's request.

The request's body is the client's own or a translated one. The modules named `asking` translate
requests, those named `hearing` translate answers. The operator chooses the base URL, so
`gateway.fetching.policy` does not apply to it, and it can be on loopback. Redirects are not
followed, and no proxy is used. Only two of the client's headers are passed on (`PASSED_HEADERS`).
The HTTP client is imported at the first call.
"""

from gateway.fetching.providers.answer import ProviderAnswer
from gateway.fetching.providers.call import (
    ASKS,
    ProviderCall,
    ProviderFailed,
    ProviderRule,
    call_of,
    failure_within,
    refusal_of,
)
from gateway.fetching.providers.hearing import Hearing, events_in
from gateway.fetching.providers.told import ToldInPassing
from gateway.fetching.providers.translation import hearing_of, translated

__all__ = [
    "ASKS",
    "Hearing",
    "ProviderAnswer",
    "ProviderCall",
    "ProviderFailed",
    "ProviderRule",
    "ToldInPassing",
    "call_of",
    "events_in",
    "failure_within",
    "hearing_of",
    "refusal_of",
    "translated",
]
