"""Seeded schedules of demand, pins, commands, nodes drained and holders changed, against what must
hold whatever comes. `SHOAL_TEST_POOL=<seed>` tells one story again."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from bus.replica.state import ClusterState
from bus.wire.ids import CommandId, InstanceId, ModelId
from bus.wire.messages.commands import DeleteInstance, DrainNode, PinModel, PlaceModel
from bus.wire.messages.events import InstanceDraining, InstancePlaced, InstanceYields
from master.decisions.decide import Policy
from master.placement.capacity import MEMORY_SHARE
from master.pool import PoolSettings
from tests.sim.pool_world import TOLD_S, Ask, Broken, Kind, PoolWorld

SEEDS = 10_000 if os.environ.get("SHOAL_PROVE") else 60
TURN_S, RATE = 6.0, 2.0
LONGEST_WORK_S, LONGEST_LOAD_S = 4.0, 4.0
PRIORITIES = (1, 5, 10, 10, 10, 20, 50)
UNIT = 1e9


class Schedule:
    """One story: a world, its dice, and what is held against it at each event and each step."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.seed = seed
        kinds = [
            Kind(ModelId(f"m{number}"), chance.choice((1, 2, 3, 4)), chance.choice((0.5, 2.0, 4.0)))
            for number in range(chance.randint(2, 6))
        ]
        nodes = {
            f"n{number}": (chance.choice((7.0, 9.0, 13.0)), chance.randint(1, 3))
            for number in range(chance.randint(1, 3))
        }
        settings = PoolSettings(turn_s=TURN_S, turn_loads=1.0, ageing_per_s=RATE)
        self.world = PoolWorld(kinds, nodes, Policy(keep_alive_s=30.0, pool=settings), rows=2)
        self.world.on_event = self.check_event
        self.models = [str(kind.name) for kind in kinds]
        self.pins = 0
        self.commands = 0
        self.evicted = self.placed = 0

    def fail(self, what: str) -> None:
        story = "\n".join(self.world.story[-40:])
        raise Broken(f"seed {self.seed}: {what}\n{story}")

    # --- what must hold ---------------------------------------------------------------------

    def check_event(self, body: Any, before: ClusterState) -> None:
        if isinstance(body, InstanceDraining | InstanceYields):
            self.check_leaving(body, before)
        elif isinstance(body, InstancePlaced):
            self.placed += 1
            self.check_placed(body, before)

    def check_leaving(self, body: InstanceDraining | InstanceYields, before: ClusterState) -> None:
        known = before.instances[body.instance]
        asked = body.why == "asked to" or body.why.endswith("is drained")
        if isinstance(body, InstanceYields) and not body.to:
            return
        if (known.model in before.pins or known.pinned) and not asked:
            self.fail(f"{known.model} is pinned and has to go: {body.why}")
        held = self.world.held.get(InstanceId(body.instance))
        if held is None or asked or isinstance(body, InstanceYields):
            return
        self.evicted += 1
        long_ago = [a for a in held.running if self.world.now - (a.began_at or 0.0) > TOLD_S + 0.2]
        if long_ago:
            self.fail(f"{known.model} is unloaded though it has been busy: {body.why}")

    def check_placed(self, body: InstancePlaced, before: ClusterState) -> None:
        one = body.instance
        living = [
            other.instance
            for other in before.instances.values()
            if other.model == one.model and other.status in ("placed", "ready")
        ]
        if living:
            self.fail(f"{one.model} is placed beside {living}")

    def check_step(self) -> None:
        world = self.world
        book = world.holder._book  # pyright: ignore[reportPrivateUsage]
        claimed: list[str] = []
        for node, (gigabytes, slots) in world.nodes.items():
            shards = [
                (name, shard)
                for name, one in world.state.instances.items()
                if one.status != "failed"
                for shard in one.shards
                if shard.node == node
            ]
            reserved = sum(shard.bytes_reserved for _, shard in shards)
            if reserved > MEMORY_SHARE * (gigabytes / MEMORY_SHARE) * UNIT + 1:
                self.fail(f"{reserved} bytes are reserved on {node}, of {gigabytes} GB")
            if len(shards) > slots:
                self.fail(f"{len(shards)} copies on {node}, which has {slots} slots")
            freed = promised = 0
            for plan in book.plans.values():
                promised += plan.choice.needs.get(node, 0)
                gone = {one.copy.instance.instance for one in plan.choice.victims}
                freed += sum(shard.bytes_reserved for name, shard in shards if name in gone)
            if promised and reserved - freed + promised > gigabytes * UNIT + 1:
                self.fail(f"promises exceed the ledger of {node}: {reserved} {freed} {promised}")
        for plan in book.plans.values():
            claimed += [str(one.copy.instance.instance) for one in plan.choice.victims]
        if len(claimed) != len(set(claimed)):
            self.fail("a copy leaves for two plans")

    def bound_of(self, ask: Ask) -> float:
        """How long anybody waits who is served at all: to age past all that is not urgent, then a
        turn, a load, and what runs, of each other model, twice over for those who came before."""
        swap_s = max(TURN_S, LONGEST_LOAD_S) + LONGEST_LOAD_S + LONGEST_WORK_S + 6.0
        ageing_s = max(0, ask.priority - 2) / RATE
        return ageing_s + (2 * len(self.models) + 2) * swap_s

    # --- what happens -------------------------------------------------------------------------

    def act(self) -> None:
        world, chance = self.world, self.chance
        model = ModelId(chance.choice(self.models))
        self.commands += 1
        name = CommandId(f"c{self.commands}")
        deed = chance.random()
        if deed < 0.7:
            self.asks(model)
        elif deed < 0.76:
            world.command(PinModel(command_id=name, model=model, by="somebody"))
        elif deed < 0.84:
            for pinned in list(world.state.pins):
                unpin = PinModel(command_id=name, model=ModelId(pinned), pinned=False)
                world.command(unpin)
        elif deed < 0.88 and world.waiting:
            world.give_up(chance.choice(world.waiting))
        elif deed < 0.92:
            world.command(PlaceModel(command_id=name, model=model))
        elif deed < 0.94 and world.state.instances:
            gone = InstanceId(chance.choice(sorted(world.state.instances)))
            world.command(DeleteInstance(command_id=name, instance=gone, drain_s=60.0))
        elif deed < 0.96 and len(world.nodes) > 1:
            node = chance.choice(sorted(world.nodes))
            is_drained = world.state.nodes[node].draining
            world.command(DrainNode(command_id=name, node=node, draining=not is_drained))
        elif deed < 0.98:
            world.begin_term()

    def asks(self, model: ModelId) -> None:
        chance = self.chance
        priority = chance.choice(PRIORITIES)
        for _ in range(chance.choice((1, 1, 2, 6))):
            work_s = chance.uniform(0.2, LONGEST_WORK_S)
            self.world.ask(model, priority=priority, work_s=work_s)

    def steps(self, seconds: float) -> None:
        end = self.world.now + seconds
        while self.world.now < end:
            self.world.step()
            self.check_step()

    def end(self) -> None:
        """All pins and drains are undone and nobody comes any more: all who wait are served, in
        their time, or the holder says that there can never be room for them."""
        world = self.world
        for number, pinned in enumerate(sorted(world.state.pins)):
            name = CommandId(f"end{number}")
            world.command(PinModel(command_id=name, model=ModelId(pinned), pinned=False))
        for node in sorted(world.nodes):
            if world.state.nodes[node].draining:
                world.command(DrainNode(command_id=CommandId(node), node=node, draining=False))
        began = world.now
        left = list(world.waiting)
        longest = max((self.bound_of(ask) for ask in left), default=0.0)
        while world.now < began + longest and any(ask in world.waiting for ask in left):
            self.steps(1.0)
        for ask in left:
            if ask in world.waiting and not self.is_refused(ask.model):
                self.fail(f"{ask} waits longer than {longest:.0f} s")
            elif ask.began_at is not None and ask.began_at - began > self.bound_of(ask):
                self.fail(f"{ask} waited longer than {self.bound_of(ask):.0f} s")

    def is_refused(self, model: ModelId) -> bool:
        waits = self.world.holder.pool(self.world.state, "holder", self.world.now).waits  # type: ignore[arg-type]
        return any(one.model == model and one.phase in ("refused", "hopeless") for one in waits)


def tell(seed: int) -> Schedule:
    schedule = Schedule(seed)
    schedule.steps(2.0)
    for _ in range(24):
        schedule.act()
        schedule.steps(schedule.chance.choice((0.1, 0.5, 2.0, 6.0)))
    schedule.end()
    return schedule


@pytest.mark.slow
def test_what_must_hold_holds_in_every_schedule() -> None:
    evicted = placed = answered = 0
    for seed in range(SEEDS):
        schedule = tell(seed)
        evicted, placed = evicted + schedule.evicted, placed + schedule.placed
        answered += len(schedule.world.done)
    print(f"{SEEDS} schedules: {placed} loads, {evicted} evictions, {answered} answers")
    assert evicted > SEEDS and answered > 10 * SEEDS, "a simulation of nothing shows nothing"


@pytest.mark.skipif("SHOAL_TEST_POOL" not in os.environ, reason="tells one story again")
def test_replay() -> None:
    schedule = tell(int(os.environ["SHOAL_TEST_POOL"]))
    print("\n".join(schedule.world.story))
