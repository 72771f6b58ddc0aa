"""Applies a client's profile to its requests: adds default values, and enforces cooldowns and
limits of waiting requests.

Pure: time arrives as `now`.
"""

from gateway.requests.clients.profiled import (
    asked_too_soon,
    cooldown_of,
    too_many_waiting,
    with_defaults,
)
from gateway.requests.clients.rests import ClientRests, RestRow

__all__ = [
    "ClientRests",
    "RestRow",
    "asked_too_soon",
    "cooldown_of",
    "too_many_waiting",
    "with_defaults",
]
