"""Talks to providers: one question is asked of a server that the operator named, as it stands, or
translated from another dialect (`asking`, `hearing`).

A base URL is the operator's, not a client's: nothing of `gateway.fetching.policy` judges it, and it
may be on loopback. Redirects are not followed, no proxy is asked for, and no header of the client
goes along. What is not asked loads no HTTP client.
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
