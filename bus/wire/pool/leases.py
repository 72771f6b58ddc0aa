"""Leases: memory of a node that is reserved for something other than a model.

Pure. A lease is a fact in the cluster's state. Only the leader knows when a lease was last renewed,
and how much of its memory is used.
"""

from __future__ import annotations

from typing import NewType

from pydantic import Field

from bus.wire.ids import NodeId
from bus.wire.messages.wire import Message

LeaseId = NewType("LeaseId", str)
LEASE_PATTERN = r"lease-[0-9a-z-]{1,64}"
MAX_LEASES = 64
LEAST_TTL_S, MOST_TTL_S = 5.0, 86_400.0
MOST_BYTES = 1 << 50
NORMAL = 10


class Lease(Message):
    """A reservation of a node's memory; `owner` names its use. It ends if it is not renewed for
    `ttl_s`. `yields_to`: the model or lease that requests its memory; empty: none. Only a more
    urgent one (smaller `priority`) may request it. `at_s`: when it was granted, in seconds since
    1970."""

    lease: LeaseId = Field(pattern=LEASE_PATTERN)
    node: NodeId
    size_bytes: int = Field(gt=0, le=MOST_BYTES)
    owner: str = Field(default="", max_length=64)
    priority: int = Field(default=NORMAL, ge=0, le=1000)
    ttl_s: float = Field(ge=LEAST_TTL_S, le=MOST_TTL_S)
    at_s: float = 0.0
    yields_to: str = ""
