"""Talks to clients about who is in memory: what waits for it and why, what is pinned, and leases of
memory for other things."""

from gateway.http.resources.pool.leases import (
    LeaseAsking,
    LeaseBody,
    LeaseList,
    LeaseRenewal,
    LeaseResource,
    RenewalBody,
)
from gateway.http.resources.pool.pool import PinBody, PinResource, PoolResource

__all__ = [
    "LeaseAsking",
    "LeaseBody",
    "LeaseList",
    "LeaseRenewal",
    "LeaseResource",
    "PinBody",
    "PinResource",
    "PoolResource",
    "RenewalBody",
]
