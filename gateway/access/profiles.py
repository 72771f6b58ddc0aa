"""Adds the default values of a client's profile to a request, and makes the refusals that a profile
causes. Pure. A value in the body takes precedence over the profile.
"""

from __future__ import annotations

from dataclasses import replace

from bus.models.tasks import CLIENTS_FILE, ClientName, ClientProfile
from bus.wire.shares import PRIORITIES
from gateway.dialects.dialect import Extras, Parsed
from gateway.dialects.faults import HttpFault

WAITING_RETRY_S = 1.0
"""Retry-After in seconds for a client with too many waiting requests. It is short, because a
waiting request can begin at any time."""


def with_defaults(parsed: Parsed, profile: ClientProfile) -> Parsed:
    """Return a copy of a body with the default values of the client's profile. Values that the body
    sets are kept."""
    extras, requests = parsed.extras, parsed.requests
    if profile.priority is not None and not extras.says_priority:
        extras = replace(extras, priority=profile.priority)
        # any other priority was set in the dialect's own words
        requests = tuple(
            request.model_copy(update={"priority": profile.priority})
            if request.priority == PRIORITIES["normal"]
            else request
            for request in requests
        )
    if profile.keep_alive_s is not None and extras.keep_alive_s is None:
        stays_s = profile.keep_alive_s if extras.stay_warm_s is None else extras.stay_warm_s
        extras = replace(extras, stay_warm_s=stays_s)
    return replace(parsed, extras=extras, requests=requests)


def cooldown_of(extras: Extras, profile: ClientProfile) -> float:
    """Return a client's cooldown after a request in seconds: the longer of the body's and the
    profile's."""
    return max(extras.cooldown_s, profile.cooldown_s)


def asked_too_soon(client: ClientName, left_s: float) -> HttpFault:
    """Return the 429 error for a client that is in cooldown for another `left_s` seconds."""
    return HttpFault(
        429,
        "client_cooldown",
        f"{_words(client)} is in cooldown for {left_s:.1f} s (cooldown_s in {CLIENTS_FILE}, or "
        "x_cooldown of the previous request)",
        retry_after_s=left_s,
    )


def too_many_waiting(client: ClientName, waiting: int, most: int) -> HttpFault:
    """Return the 429 error for a client that already has its maximum number of waiting requests."""
    return HttpFault(
        429,
        "client_queue_full",
        (
            f"{_words(client)} already has {waiting} waiting requests, the limit "
            f"(max_waiting in {CLIENTS_FILE})"
        ),
        retry_after_s=WAITING_RETRY_S,
        facts={"limit": most},
    )


def _words(client: ClientName) -> str:
    kinds = {"key": "the API key", "client_id": "the client", "address": "the address"}
    return f"{kinds[client.kind]} '{client.name}'"
