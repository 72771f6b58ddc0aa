"""Talks to providers: asks a server that the operator named, with the client's body or a translated
one (`asking`, `hearing`).

The operator chooses the base URL, so `gateway.fetching.policy` does not apply to it, and it may be
on loopback. Redirects are not followed, no proxy is used, and the client's headers are not passed
on, except the two of `PASSED_HEADERS`. The HTTP client is loaded at the first call.
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
