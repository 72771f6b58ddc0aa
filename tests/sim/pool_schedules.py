"""One seeded schedule of a pool: what happens in it, and what must hold whatever comes.

Demand, clients that give up, commands, pins by hand and by `card.toml`, runners that crash, nodes
drained, lost and found again, holders changed; in every second one programs that have leases, in
two of three replicas. Tasks are not there yet.
"""

from __future__ import annotations

import random
from typing import Any

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, ModelId
from bus.wire.messages.commands import DeleteInstance, DrainNode, PinModel, PlaceModel
from bus.wire.messages.events import (
    GenerationOpened,
    InstanceDraining,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    InstanceYields,
    LeaseEnded,
    LeaseGranted,
    ModelUnpinned,
)
from master.decisions.decide import Policy
from master.decisions.holder import ASKED_S
from master.decisions.pool_view import BY_CARD
from master.pool import PoolSettings
from tests.sim.pool_leases import LATE_S, TTL_S, Owners
from tests.sim.pool_replicas import ReplicaWatch
from tests.sim.pool_world import TOLD_S, Ask, Broken, Kind, PoolWorld

TURN_S, RATE = 6.0, 2.0
LONGEST_WORK_S, LONGEST_LOAD_S = 4.0, 4.0
PRIORITIES = (1, 5, 10, 10, 10, 20, 50)
UNIT = 1e9
MOST_CRASHES = 3
"""Of one schedule: more would have models given up and tried again after minutes."""
REPLICA_AFTER_S, REPLICA_GONE_S = 2.0, 4.0
RETRIED_S, GRACE_S = 65.0, 65.0
"""A copy that was given up is tried again after so long; a silent node's are given up so late."""


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
        settings = PoolSettings(
            turn_s=TURN_S, turn_loads=1.0, ageing_per_s=RATE, replicas=seed % 3, replica_rows=2,
            replica_after_s=REPLICA_AFTER_S, replica_gone_s=REPLICA_GONE_S,
        )  # fmt: skip
        self.world = PoolWorld(kinds, nodes, Policy(keep_alive_s=30.0, pool=settings), rows=2)
        self.world.on_event = self.check_event
        self.watch = ReplicaWatch(self.world)
        self.models = [str(kind.name) for kind in kinds]
        self.owners = Owners(self.world, random.Random(f"leases {seed}")) if seed % 2 else None
        self.commands = 0
        self.unpinning: ModelId | None = None
        self.evicted = self.placed = self.terms = self.losses = self.crashes = 0
        self.handed_over = 0

    def fail(self, what: str) -> None:
        story = "\n".join(self.world.story[-40:])
        raise Broken(f"seed {self.seed}: {what}\n{story}")

    def told_of(self, faults: list[str]) -> None:
        for fault in faults:
            self.fail(fault)

    # --- what must hold ---------------------------------------------------------------------

    def check_event(self, body: Any, before: ClusterState) -> None:
        if isinstance(body, InstanceDraining | InstanceYields):
            self.check_leaving(body, before)
            self.told_of(self.watch.leaves(body, before))
        elif isinstance(body, InstancePlaced) and body.instance.replica:
            self.told_of(self.watch.comes(body, before))
        elif isinstance(body, InstancePlaced):
            self.placed += 1
            self.check_placed(body, before)
        elif isinstance(body, ModelUnpinned):
            self.check_unpinned(body, before)
        elif isinstance(body, LeaseGranted | LeaseEnded) and self.owners is not None:
            self.owners.event(body, before)

    def check_leaving(self, body: InstanceDraining | InstanceYields, before: ClusterState) -> None:
        known = before.instances[body.instance]
        is_replica = body.instance in self.watch.replicas(before)
        asked = body.why == "unloading was requested" or body.why.endswith(
            ("is drained", "which is ready again")
        )
        if isinstance(body, InstanceYields) and not body.to:
            return
        if (known.model in before.pins or known.pinned) and not asked and not is_replica:
            self.fail(f"{known.model} is pinned and has to go: {body.why}")
        held = self.world.held.get(InstanceId(body.instance))
        if held is None or asked or is_replica or isinstance(body, InstanceYields):
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
            if not any(shard.node in self.world.lost for shard in other.shards)
        ]
        if living:
            self.fail(f"{one.model} is placed beside {living}")

    def check_unpinned(self, body: ModelUnpinned, before: ClusterState) -> None:
        """A pin ends by a command, or because the newest of its model's cards says so."""
        said = [one for (_, model), one in self.world.card_files.items() if model == body.model]
        is_pinned_by_card = max(said, default=(0.0, False))[1]
        by_card = before.pins[body.model].by == BY_CARD
        if body.model != self.unpinning and (not by_card or is_pinned_by_card):
            self.fail(f"{body.model} is pinned by {before.pins[body.model].by}, and loses its pin")

    def check_step(self) -> None:
        world = self.world
        book = world.holder._book  # pyright: ignore[reportPrivateUsage]
        claimed: list[str] = []
        for node, (gigabytes, slots) in world.nodes.items():
            shards = [
                (name, shard)
                for name, one in world.state.instances.items()
                # one that failed and is deleted has no runner, and takes nothing till it is removed
                if one.status not in ("failed", "draining") or name in world.held
                for shard in one.shards
                if shard.node == node
            ]
            reserved = sum(shard.bytes_reserved for _, shard in shards)
            reserved += sum(o.size_bytes for o in world.state.leases.values() if o.node == node)
            if reserved > gigabytes * UNIT + 1:
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
        self.told_of(self.watch.stand())

    def bound_of(self, ask: Ask) -> float:
        """How long each waits who is served at all: to age past all that is not urgent, then a
        turn, a load, and what runs, of each other model, twice over for those who came before."""
        swap_s = max(TURN_S, LONGEST_LOAD_S) + LONGEST_LOAD_S + LONGEST_WORK_S + 6.0
        ageing_s = max(0, ask.priority - 2) / RATE
        mishaps_s = RETRIED_S * self.crashes + GRACE_S * self.losses
        return ageing_s + (2 * len(self.models) + 2) * swap_s + mishaps_s

    # --- what happens -------------------------------------------------------------------------

    def act(self) -> None:
        world, chance = self.world, self.chance
        model = ModelId(chance.choice(self.models))
        self.commands += 1
        name = CommandId(f"c{self.commands}")
        deed = chance.random()
        if deed < 0.62:
            self.asks(model)
        elif deed < 0.67:
            self.pin(PinModel(command_id=name, model=model, by="somebody"))
        elif deed < 0.70:
            self.write_card(model, pin=chance.random() < 0.5)
        elif deed < 0.77:
            for number, pinned in enumerate(sorted(world.state.pins)):
                each = CommandId(f"{name}-{number}")
                self.pin(PinModel(command_id=each, model=ModelId(pinned), pinned=False))
        elif deed < 0.80 and world.waiting:
            world.give_up(chance.choice(world.waiting))
        elif deed < 0.83:
            world.command(PlaceModel(command_id=name, model=model))
        elif deed < 0.85 and world.state.instances:
            gone = InstanceId(chance.choice(sorted(world.state.instances)))
            world.command(DeleteInstance(command_id=name, instance=gone, drain_s=60.0))
        elif deed < 0.87 and len(world.nodes) > 1:
            node = chance.choice(sorted(world.nodes))
            is_drained = world.state.nodes[node].draining
            world.command(DrainNode(command_id=name, node=node, draining=not is_drained))
        elif deed < 0.90:
            self.change_holder()
        else:
            self.mishap()

    def mishap(self) -> None:
        """A runner crashes, a node is lost, or one is found again."""
        world, chance = self.world, self.chance
        held = [world.held[name] for name in sorted(world.held)]
        here = sorted(node for node in world.nodes if node not in world.lost)
        what = chance.choice(("crash", "lose", "find", "find"))
        if what == "crash" and held and self.crashes < MOST_CRASHES:
            self.crashes += 1
            world.crash(chance.choice(held))
        elif what == "lose" and here:
            self.losses += 1
            world.lose(chance.choice(here))
        elif what == "find" and world.lost:
            world.find(chance.choice(sorted(world.lost)))

    def pin(self, command: PinModel) -> None:
        """Pin or unpin; what is acknowledged is so."""
        model = command.model
        self.unpinning = None if command.pinned else model
        answer = self.world.command(command)
        self.unpinning = None
        is_refused = answer is None or isinstance(answer, Refusal)
        if not is_refused and (model in self.world.state.pins) != command.pinned:
            self.fail(f"{command} was acknowledged, and is not so")

    def write_card(self, model: ModelId, *, pin: bool) -> None:
        """Write a model's card on a node that is there, and tell of it."""
        here = sorted(node for node in self.world.nodes if node not in self.world.lost)
        if here:
            node = self.chance.choice(here)
            self.world.card_files[node, model] = (self.world.now, pin)
            self.world.hear_cards()

    def change_holder(self) -> None:
        """A new holder begins with the log alone: it takes up what was left half done, and nothing
        that the old one had written is undone. What that knew of failures, this one knows."""
        self.terms += 1
        before, told = self.world.state, len(self.world.told)
        failed = self.remembered()
        self.world.begin_term()
        after = self.world.state
        self.handed_over += len(failed)
        if self.remembered() != failed:
            self.fail(f"of failures was known {failed}, and now {self.remembered()}")
        for body in self.world.told[told:]:
            if isinstance(body, InstanceRemoved | InstanceFailed | ModelUnpinned):
                self.fail(f"a new holder begins with {body}")
        drained = [[n for n, one in s.nodes.items() if one.draining] for s in (before, after)]
        opened = {
            body.instance for body in self.world.told[told:] if isinstance(body, GenerationOpened)
        }
        kept = {name: one for name, one in before.instances.items() if name not in opened}
        same = all(after.instances.get(name) == one for name, one in kept.items())
        same = same and before.leases == after.leases
        if before.pins != after.pins or drained[0] != drained[1] or not same:
            self.fail("what the old holder had written is not so any more")

    def remembered(self) -> dict[str, tuple[int, float, float]]:
        """Return what the holder knows of models that failed: how often in a row, until when they
        are not tried again, and until when they get no replica."""
        notes = self.world.holder._memory  # pyright: ignore[reportPrivateUsage]
        rows, paused = notes.crash_loops.rows, notes.loads.paused_until
        paused = {model: at for model, at in paused.items() if at > self.world.now}
        return {
            model: (
                rows[model].count if model in rows else 0,
                round(max(self.world.now, notes.crash_loops.next_at(model)), 3),
                round(max(self.world.now, paused.get(model, 0.0)), 3),
            )
            for model in {*rows, *paused}
        }

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
            if self.owners is not None:
                self.owners.step()
                self.told_of(self.owners.faults)
            self.check_step()

    def end(self) -> None:
        """All nodes are back, all pins, drains and leases are undone, and no more requests come:
        all who wait are served, in their time, or the holder says that there can never be room."""
        world = self.world
        if self.owners is not None:
            self.owners.end()
            self.steps(ASKED_S + TTL_S + LATE_S)  # one who died asking may be granted one yet
            if world.state.leases:
                self.fail(f"leases that do not end: {sorted(world.state.leases)}")
        for node in sorted(world.lost):
            world.find(node)
        for node, model in list(world.card_files):
            world.card_files[node, model] = (world.now, False)
        world.hear_cards()
        for number, pinned in enumerate(sorted(world.state.pins)):
            name = CommandId(f"end{number}")
            self.pin(PinModel(command_id=name, model=ModelId(pinned), pinned=False))
        if world.state.pins:
            self.fail(f"pins that do not end: {sorted(world.state.pins)}")
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
        # what runs ends, and is measured to have ended; then one replica goes after the other
        self.steps(2 * (LONGEST_WORK_S + REPLICA_GONE_S) + 2 * REPLICA_GONE_S + TOLD_S)
        if left := self.watch.replicas(world.state):
            self.fail(f"replicas that do not go: {left}")

    def is_refused(self, model: ModelId) -> bool:
        waits = self.world.holder.pool(self.world.state, "holder", self.world.now).waits  # type: ignore[arg-type]
        return any(one.model == model and one.phase in ("refused", "hopeless") for one in waits)


def tell(seed: int) -> Schedule:
    schedule = Schedule(seed)
    schedule.steps(2.0)
    for _ in range(24):
        schedule.act()
        if schedule.owners is not None:
            schedule.owners.act()
        schedule.steps(schedule.chance.choice((0.1, 0.5, 2.0, 6.0)))
    schedule.end()
    return schedule
