"""The defaults that a client's profile adds to its requests, and when a client may ask again.

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
