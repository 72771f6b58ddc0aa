"""Talks to clients about who is in memory: what waits for it and why, what is pinned, leases of
memory for other things, and which clients ask for it all."""

from gateway.http.resources.pool.clients import ClientList
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
    "ClientList",
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
