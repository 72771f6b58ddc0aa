"""Talks to the bus, the disk and the gateway's other HTTP processes: who may use the gateway, and
how much. It has API keys with their budgets, clients with their profiles and cooldowns, and checks
of web origins.

The secret of a key is never stored. shoal stores the secret's hash, and finds a key by that hash.
This package uses the packages for requests and records; neither of those two imports this package.
"""

from gateway.access.api_keys import ApiKeys
from gateway.access.auth import (
    EXPOSED_HEADERS,
    STRANGER,
    Caller,
    caller_of_key,
    caller_of_run,
    check_scope,
    client_address,
    hashed,
    host_allowed,
    is_open,
    offered_key,
    page_allowed,
    page_refused,
    spent,
    unknown_caller,
)
from gateway.access.clients import AskingClients, ClientTold
from gateway.access.profiles import cooldown_of, with_defaults

__all__ = [
    "EXPOSED_HEADERS",
    "STRANGER",
    "ApiKeys",
    "AskingClients",
    "Caller",
    "ClientTold",
    "caller_of_key",
    "caller_of_run",
    "check_scope",
    "client_address",
    "cooldown_of",
    "hashed",
    "host_allowed",
    "is_open",
    "offered_key",
    "page_allowed",
    "page_refused",
    "spent",
    "unknown_caller",
    "with_defaults",
]
