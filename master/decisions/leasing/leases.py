"""Commands about leases to events, to a choice of who makes way, or to a refusal.

Pure. Models make way for a lease as for a model. A lease is asked back, and not taken away, for
what is more urgent by its class: ageing does not count there, for what has a lease has no turns.
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
"""So many leases of one node are asked back at once."""


def take_lease(command: TakeLease, scene: Scene) -> LeaseGranted | pool.PoolChoice | Refusal | None:
    """Return the lease, None where it is held already, who makes way first, or a refusal."""
    leases = scene.state.leases
    if command.lease in leases:
        return None
    if len(leases) >= MAX_LEASES:
        text = f"{len(leases)} leases are held, which is the most; give one back first"
        return Refusal(reason="conflict", message=text)
    found = room_for(scene, command)
    if isinstance(found, Refusal) or found.victims:
        return found
    granted = Lease(
        lease=command.lease,
        node=next(iter(found.needs)),
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
    """Return the event of a command about a lease, None where it changes nothing, or a refusal."""
    known = state.leases.get(command.lease)
    if known is None:
        text = f"there is no lease {command.lease!r}; it was given back, or it was not renewed"
        return Refusal(reason="unknown_lease", message=text, field="lease")
    match command:
        case RenewLease():
            return None
        case AskLeaseBack(by=by):
            # no model's name: such a one would be withdrawn when that waits no longer
            to = f"operator {by}" if by else "an operator"
            return LeaseAskedBack(lease=command.lease, to=to, why=f"{to} asks for it")
        case EndLease(why=why):
            return LeaseEnded(lease=command.lease, why=why)


def asked_back(
    wish: PlaceModel | TakeLease, scene: Scene, decide: Callable[[Scene], Decision]
) -> list[LeaseAskedBack]:
    """Return the questions for the leases in whose place there would be room for a wish that has
    none, beside copies that may leave: as few as help, of one node, of less urgent classes. None
    where some were asked back for it already. `decide` says what the wish comes to in a scene."""
    leases = scene.state.leases
    if any(one.yields_to == wish.model for one in leases.values()):
        return []
    why = f"{wish.model} is more urgent, and there is no other room"
    by_node = pool.askable(scene.state, claim_of(scene, wish).priority) if leases else {}
    unasked = [[one for one in there if not one.yields_to] for there in by_node.values()]
    tries = [some[:count] for some in unasked for count in range(1, len(some) + 1)]
    for some in sorted(tries, key=len):
        if len(some) <= MOST_ASKED and not isinstance(decide(_without(scene, some)), Refusal):
            return [LeaseAskedBack(lease=o.lease, to=wish.model, why=why) for o in some]
    return []


def not_wanted_back(state: ClusterState, wished: Iterable[ModelId]) -> list[LeaseAskedBack]:
    """Return the withdrawal of each question for a lease whose asker waits no longer."""
    names = set(wished)
    why = "what it was asked back for is not wanted any more"
    return [
        LeaseAskedBack(lease=one.lease, why=why)
        for one in state.leases.values()
        if is_model_id(one.yields_to) and ModelId(one.yields_to) not in names
    ]


def _without(scene: Scene, gone: Iterable[Lease]) -> Scene:
    names = {one.lease for one in gone}
    rest = {key: one for key, one in scene.state.leases.items() if key not in names}
    return replace(scene, state=scene.state.model_copy(update={"leases": rest}))
