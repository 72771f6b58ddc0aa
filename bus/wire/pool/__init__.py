"""Messages about the cluster's shared memory: pins, leases, models that wait for memory, instances.

Pure: this package contains only messages.
"""

from bus.wire.pool.leases import (
    LEASE_PATTERN,
    LEAST_TTL_S,
    MAX_LEASES,
    MOST_BYTES,
    MOST_TTL_S,
    Lease,
    LeaseId,
)
from bus.wire.pool.messages import MAX_PINS, Pin, PoolCopy, PoolReading, PoolWait

__all__ = [
    "LEASE_PATTERN",
    "LEAST_TTL_S",
    "MAX_LEASES",
    "MAX_PINS",
    "MOST_BYTES",
    "MOST_TTL_S",
    "Lease",
    "LeaseId",
    "Pin",
    "PoolCopy",
    "PoolReading",
    "PoolWait",
]
