"""Talks to clients about who is in memory: what waits for it and why, what is pinned, leases of
memory for other things, and which clients ask for it all."""

from gateway.http.resources.pool.clients import (
    ClientList,
    ClientsAnswer,
)
from gateway.http.resources.pool.leases import (
    LeaseAnswer,
    LeaseAsking,
    LeaseBody,
    LeaseLetGo,
    LeaseList,
    LeaseRenewal,
    LeaseResource,
    LeasesAnswer,
    RenewalBody,
)
from gateway.http.resources.pool.pool import (
    PinAnswer,
    PinBody,
    PinResource,
    PoolAnswer,
    PoolResource,
)

__all__ = [
    "ClientList",
    "ClientsAnswer",
    "LeaseAnswer",
    "LeaseAsking",
    "LeaseBody",
    "LeaseLetGo",
    "LeaseList",
    "LeaseRenewal",
    "LeaseResource",
    "LeasesAnswer",
    "PinAnswer",
    "PinBody",
    "PinResource",
    "PoolAnswer",
    "PoolResource",
    "RenewalBody",
]
