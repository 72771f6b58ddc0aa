"""The leader's notes on leases: their last renewals and used bytes.

Pure. A lease ends when it is not renewed in time, when its node leaves the cluster, or when its
owner releases it. Models cannot use the bytes of a lease. The part that its owner does not use yet
is kept free, too. A new leader restarts the time of each lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.replica.state import ClusterState
from bus.wire.ids import NodeId
from bus.wire.pool import Lease, LeaseId
from master.placement import LeasedMemory


@dataclass(slots=True)
class LeaseNotes:
    """When leases were renewed, by the leader's clock, and the bytes that their owners last
    reported."""

    renewed_at: dict[LeaseId, float] = field(default_factory=dict[LeaseId, float])
    used_bytes: dict[LeaseId, int] = field(default_factory=dict[LeaseId, int])

    def renewed(self, lease: LeaseId, used_bytes: int | None, now: float) -> None:
        """Record a renewal. `used_bytes` is None if the owner did not report its use."""
        self.renewed_at[lease] = now
        if used_bytes is not None:
            self.used_bytes[lease] = used_bytes

    def ended(self, lease: LeaseId) -> None:
        """Delete the notes on a lease that has ended."""
        self.renewed_at.pop(lease, None)
        self.used_bytes.pop(lease, None)

    def memory(self, state: ClusterState) -> list[LeasedMemory]:
        """Return the size of each lease and its unused part."""
        return [
            LeasedMemory(
                lease.node,
                lease.size_bytes,
                max(0, lease.size_bytes - self.used_bytes.get(lease.lease, 0)),
            )
            for lease in state.leases.values()
        ]

    def over(self, state: ClusterState, now: float) -> dict[LeaseId, str]:
        """Return the leases that end now, with the reasons."""
        expired: dict[LeaseId, str] = {}
        for lease in state.leases.values():
            renewed_at = self.renewed_at.setdefault(lease.lease, now)
            if now - renewed_at > lease.ttl_s:
                expired[lease.lease] = f"was not renewed for {lease.ttl_s:g} s"
            elif lease.node not in state.nodes:
                expired[lease.lease] = "the node left the cluster"
        return expired


def askable(state: ClusterState, priority: int) -> dict[NodeId, list[Lease]]:
    """Return, by node, the leases whose owners may be asked to release them for a claim of this
    priority class. These are the less urgent leases: the least urgent first, and of equal ones the
    youngest."""
    by_node: dict[NodeId, list[Lease]] = {}
    leases = sorted(
        state.leases.values(), key=lambda lease: (-lease.priority, -lease.at_s, lease.lease)
    )
    for lease in leases:
        if lease.priority > priority:
            by_node.setdefault(lease.node, []).append(lease)
    return by_node
