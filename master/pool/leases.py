"""What the holder remembers of leases: when each was renewed, and what of it is used.

Pure. A lease ends when it is not renewed for its time, when its node no longer belongs to the
cluster, or when its owner gives it back. Its bytes are taken from what models may have; what of
them is not yet seen to be used is kept free besides. A new holder gives each lease its time anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.replica.state import ClusterState
from bus.wire.ids import NodeId
from bus.wire.pool import Lease, LeaseId
from master.placement import LeasedMemory


@dataclass(slots=True)
class LeaseNotes:
    """When leases were renewed, by the holder's own clock, and the bytes that their owners last
    said to use."""

    renewed_at: dict[LeaseId, float] = field(default_factory=dict[LeaseId, float])
    used_bytes: dict[LeaseId, int] = field(default_factory=dict[LeaseId, int])

    def renewed(self, lease: LeaseId, used_bytes: int | None, now: float) -> None:
        """Note that a lease is still needed; `used_bytes` None: it was not said how much of it."""
        self.renewed_at[lease] = now
        if used_bytes is not None:
            self.used_bytes[lease] = used_bytes

    def ended(self, lease: LeaseId) -> None:
        """Forget a lease."""
        self.renewed_at.pop(lease, None)
        self.used_bytes.pop(lease, None)

    def memory(self, state: ClusterState) -> list[LeasedMemory]:
        """Return what each lease keeps."""
        return [
            LeasedMemory(
                one.node,
                one.size_bytes,
                max(0, one.size_bytes - self.used_bytes.get(one.lease, 0)),
            )
            for one in state.leases.values()
        ]

    def over(self, state: ClusterState, now: float) -> dict[LeaseId, str]:
        """Return the leases that end unasked, and why."""
        found: dict[LeaseId, str] = {}
        for one in state.leases.values():
            renewed_at = self.renewed_at.setdefault(one.lease, now)
            if now - renewed_at > one.ttl_s:
                found[one.lease] = f"was not renewed for {one.ttl_s:g} s"
            elif one.node not in state.nodes:
                found[one.lease] = "its node no longer belongs to the cluster"
        return found


def askable(state: ClusterState, priority: int) -> dict[NodeId, list[Lease]]:
    """Return by node the leases that may be asked back for a claim of a class: those of less
    urgent ones, the least urgent first, of those the youngest."""
    found: dict[NodeId, list[Lease]] = {}
    leases = sorted(state.leases.values(), key=lambda one: (-one.priority, -one.at_s, one.lease))
    for one in leases:
        if one.priority > priority:
            found.setdefault(one.node, []).append(one)
    return found
