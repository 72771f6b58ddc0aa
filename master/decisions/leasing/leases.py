"""Commands about leases: the events, evictions or refusals that they lead to.

Pure. Models are evicted for a lease as for another model. If a more urgent claim needs the memory,
the owner of a lease is asked to release it; the lease is not taken away. A claim's ageing (it
becomes more urgent while it waits) does not count here, because a lease has no minimum residency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, is_model_id
from bus.wire.messages.commands import (
    AskLeaseBack,
    EndLease,
    PlaceModel,
    RenewLease,
    TakeLease,
)
from bus.wire.messages.events import LeaseAskedBack, LeaseEnded, LeaseGranted
from bus.wire.pool import MAX_LEASES, Lease
from master import pool
from master.decisions.pool_view import claim_of, room_for

if TYPE_CHECKING:
    from master.decisions.decide import Decision, Scene

MOST_ASKED = 8
"""Maximum number of leases of one node whose release is requested at the same time."""


def take_lease(command: TakeLease, scene: Scene) -> LeaseGranted | pool.PoolChoice | Refusal | None:
    """Return the event that grants the lease; None if the lease exists already; the evictions that
    must come first; or a refusal."""
    leases = scene.state.leases
    if command.lease in leases:
        return None
    if len(leases) >= MAX_LEASES:
        text = f"there are {len(leases)} leases, which is the limit; release one first"
        return Refusal(reason="conflict", message=text)
    choice = room_for(scene, command)
    if isinstance(choice, Refusal) or choice.victims:
        return choice
    granted = Lease(
        lease=command.lease,
        node=next(iter(choice.needs)),
        size_bytes=command.size_bytes,
        owner=command.owner,
        priority=command.priority,
        ttl_s=command.ttl_s,
        at_s=command.at_s,
    )
    return LeaseGranted(lease=granted)


def decide_lease(
    command: RenewLease | AskLeaseBack | EndLease, state: ClusterState
) -> LeaseAskedBack | LeaseEnded | Refusal | None:
    """Return the event that a command about a lease leads to; None if nothing changes; or a
    refusal."""
    lease = state.leases.get(command.lease)
    if lease is None:
        text = f"there is no lease {command.lease!r}; it was released or not renewed in time"
        return Refusal(reason="unknown_lease", message=text, field="lease")
    match command:
        case RenewLease():
            return None
        case AskLeaseBack(by=by):
            # not a model's name: the request would be withdrawn when that model stops waiting
            to = f"operator {by}" if by else "an operator"
            return LeaseAskedBack(lease=command.lease, to=to, why=f"{to} needs its memory")
        case EndLease(why=why):
            return LeaseEnded(lease=command.lease, why=why)


def asked_back(
    wish: PlaceModel | TakeLease, scene: Scene, decide: Callable[[Scene], Decision]
) -> list[LeaseAskedBack]:
    """Return the requests to release leases, so that a waiting model gets memory.

    The requests go to as few leases as suffice, all on one node and of less urgent classes;
    evictable instances on that node count as well. Empty if leases were already requested for this
    model. `decide` returns the placement decision for a scene.
    """
    leases = scene.state.leases
    if any(lease.yields_to == wish.model for lease in leases.values()):
        return []
    why = f"{wish.model} is more urgent, and no other memory is free"
    by_node = pool.askable(scene.state, claim_of(scene, wish).priority) if leases else {}
    unasked = [[lease for lease in there if not lease.yields_to] for there in by_node.values()]
    tries = [some[:count] for some in unasked for count in range(1, len(some) + 1)]
    for some in sorted(tries, key=len):
        if len(some) <= MOST_ASKED and not isinstance(decide(_without(scene, some)), Refusal):
            return [LeaseAskedBack(lease=o.lease, to=wish.model, why=why) for o in some]
    return []


def not_wanted_back(state: ClusterState, wished: Iterable[ModelId]) -> list[LeaseAskedBack]:
    """Return the events that withdraw requests to release a lease, because no model waits for its
    memory any more."""
    names = set(wished)
    why = "the model that needed its memory is no longer requested"
    return [
        LeaseAskedBack(lease=lease.lease, why=why)
        for lease in state.leases.values()
        if is_model_id(lease.yields_to) and ModelId(lease.yields_to) not in names
    ]


def _without(scene: Scene, gone: Iterable[Lease]) -> Scene:
    names = {lease.lease for lease in gone}
    rest = {key: lease for key, lease in scene.state.leases.items() if key not in names}
    return replace(scene, state=scene.state.model_copy(update={"leases": rest}))
