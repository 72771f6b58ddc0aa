"""Owners of leases in simulated time: each asks until it has one, uses it, gives it back or dies.

Half of the schedules of a pool have some (`tests.sim.pool_schedules`), with dice of their own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bus.replica.state import ClusterState
from bus.wire.ids import CommandId
from bus.wire.messages.commands import EndLease, RenewLease, TakeLease
from bus.wire.messages.events import LeaseEnded, LeaseGranted
from bus.wire.pool import LeaseId
from tests.sim.pool_world import GB, PoolWorld

TTL_S = 5.0
ASK_S = 1.0
LATE_S = 1.0
"""So much later than a lease's time the holder may notice that it is over."""


@dataclass
class Owner:
    """One program. `lives`: it asks or renews; `wants_none`: it has given its lease back. `uses` is
    how much of it the program takes, in gigabytes, of which it says nothing where `is_silent`."""

    command: TakeLease
    uses: float
    is_silent: bool
    lives: bool = True
    wants_none: bool = False
    told_at: float = 0.0


class Owners:
    """All programs of a schedule. `faults` are what must not be."""

    def __init__(self, world: PoolWorld, dice: random.Random) -> None:
        self.world = world
        self.dice = dice
        self.owners: dict[LeaseId, Owner] = {}
        self.faults: list[str] = []
        self.granted = self.died = self.asked_back = 0
        self._ending: LeaseId | None = None

    def act(self) -> None:
        """Something may happen to a program, or another may come."""
        deed = self.dice.random()
        living = [one for one in self.owners.values() if one.lives and not one.wants_none]
        if deed < 0.15 and len(living) < 4:
            self._comes()
        elif deed < 0.22 and living:
            self._give_back(self.dice.choice(living))
        elif deed < 0.26 and living:
            self.dice.choice(living).lives = False
            self.died += 1

    def step(self) -> None:
        """Each second programs ask for their lease, or renew it; what they use is measured."""
        world = self.world
        for lease, one in self.owners.items():
            if not one.lives or one.wants_none or world.now - one.told_at < ASK_S:
                continue
            one.told_at = world.now
            held = world.state.leases.get(lease)
            if held is None:
                world.command(one.command)
            else:
                used = None if one.is_silent else int(one.uses * GB)
                name = CommandId(f"renew-{lease}-{world.now:.1f}")
                world.command(RenewLease(command_id=name, lease=lease, used_bytes=used))
                if held.yields_to and self.dice.random() < 0.3:
                    self.asked_back += 1
                    self._give_back(one)
        world.outside = {}
        for lease, held in world.state.leases.items():
            one = self.owners[LeaseId(lease)]
            if one.lives:
                world.outside[held.node] = world.outside.get(held.node, 0.0) + one.uses

    def event(self, body: LeaseGranted | LeaseEnded, before: ClusterState) -> None:
        """Hold an event about a lease against who has it."""
        if isinstance(body, LeaseGranted):
            self.granted += 1
            if body.lease.lease in before.leases:
                self.faults.append(f"{body.lease.lease} is granted twice")
            return
        owner = self.owners[body.lease]
        if body.lease == self._ending:
            return
        if owner.lives:
            wanted = (
                "was not wanted, and was granted" if owner.wants_none else "is renewed, and ends"
            )
            self.faults.append(f"{body.lease} {wanted}: {body.why}")

    def end(self) -> None:
        """No program wants a lease any more; some have died."""
        for one in self.owners.values():
            if one.lives and not one.wants_none:
                self._give_back(one)

    def _comes(self) -> None:
        name = f"lease-{len(self.owners)}"
        gigabytes = self.dice.choice((1.0, 3.0, 6.0))
        command = TakeLease(
            command_id=CommandId(f"take-{name}"), lease=LeaseId(name),
            size_bytes=int(gigabytes * GB), owner=name, ttl_s=TTL_S,
            priority=self.dice.choice((5, 10, 20)),
        )  # fmt: skip
        uses = gigabytes * self.dice.choice((0.0, 0.5, 1.0))
        self.owners[command.lease] = Owner(command, uses, is_silent=self.dice.random() < 0.3)

    def _give_back(self, one: Owner) -> None:
        one.wants_none = True
        self._ending = lease = one.command.lease
        self.world.command(EndLease(command_id=CommandId(f"end-{lease}"), lease=lease))
        self._ending = None
        if lease in self.world.state.leases:
            self.faults.append(f"{lease} was given back, and is still held")
