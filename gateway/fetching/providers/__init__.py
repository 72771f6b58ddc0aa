"""Talks to providers: one question is asked of a server that the operator named, as it stands.

A base URL is the operator's, not a client's: nothing of `gateway.fetching.policy` judges it, and it
may be on loopback. Redirects are not followed, no proxy is asked for, and no header of the client
goes along. What is not asked loads no HTTP client.
"""

from gateway.fetching.providers.answer import ProviderAnswer
from gateway.fetching.providers.call import (
    ASKS,
    WHERE,
    ProviderCall,
    ProviderFailed,
    ProviderRule,
    call_of,
    refusal_of,
)
from gateway.fetching.providers.told import ToldInPassing

__all__ = [
    "ASKS",
    "WHERE",
    "ProviderAnswer",
    "ProviderCall",
    "ProviderFailed",
    "ProviderRule",
    "ToldInPassing",
    "call_of",
    "refusal_of",
]
