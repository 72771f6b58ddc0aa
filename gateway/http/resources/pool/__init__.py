"""Talks to clients about the shared memory of the cluster: loaded models, waiting demand, pins,
leases for other programs, and the clients that send requests."""

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
