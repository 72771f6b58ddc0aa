"""Machines in a world, the faults that befall them, and what has to be true once they heal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bus.replica.state import ClusterState
from bus.wire.api_keys import ApiKey
from bus.wire.ids import CommandId, InstanceId, NodeId
from bus.wire.messages.commands import (
    AddApiKey,
    Command,
    DeleteInstance,
    ForgetNode,
    PlaceModel,
    RemoveApiKey,
    RotateApiKey,
)
from bus.wire.messages.events import NodeJoined
from tests.sim.checks import Checks
from tests.sim.machine import Machine
from tests.sim.simulated_holder import MODEL
from tests.sim.world import Weather, World

LATE_S = 2.0
"""What was lost before everything healed may be missed for a lapse, and bring one campaign."""
HEALED_S = 12.0
"""A lapse, some campaigns that miss each other, and the repair of every log."""
WORKED_S = 40.0
"""Runners have to be missed, ended and loaded again besides."""
QUIET_S = 4.0


@dataclass(frozen=True)
class Plan:
    """What kind of cluster: `size` machines, the first `voters` of them configured to vote
    (0: none votes), of which the last `guests` know nothing; `workers` have runners too;
    where one `forgets`, voters that are down are let go, and let back in, all the time; where one
    has `keys`, what is asked for is about API keys; where one `rots`, bits flip in the journal of
    one machine."""

    name: str
    size: int
    voters: int = 0
    guests: int = 0
    workers: bool = False
    forgets: bool = False
    keys: bool = False
    rots: bool = False


PLANS = {
    plan.name: plan
    for plan in (
        Plan("three-voters", 3, voters=3),
        Plan("five-voters", 5, voters=5),
        Plan("voters-and-others", 5, voters=3, guests=1),
        Plan("voters-forgotten", 5, voters=5, forgets=True),
        Plan("voters-with-keys", 3, voters=3, keys=True),
        Plan("voters-that-rot", 3, voters=3, rots=True),
        Plan("pair", 2),
        Plan("pair-that-rots", 2, rots=True),
        Plan("free", 4),
        Plan("voters-at-work", 3, voters=3, workers=True),
        Plan("pair-at-work", 2, workers=True),
        Plan("three-at-work", 3, workers=True),
    )
}


class Broken(AssertionError):
    """An invariant does not hold; the text says how to see it again."""


class Cluster:
    """All machines of a plan, from one seed."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.seed = plan, seed
        self.world = World(seed)
        self.checks = Checks(self.fail)
        names = [NodeId("abcdefg"[n]) for n in range(plan.size)]
        self.voters = frozenset(names[: plan.voters])
        self.machines: list[Machine] = []
        for number, name in enumerate(names):
            told = number < plan.size - plan.guests
            voters = self.voters if told else frozenset[NodeId]()
            self.machines.append(Machine(name, self, voters=voters))
        self.asked_by: dict[CommandId, NodeId] = {}
        self.commands = 0
        self.key_commands: list[AddApiKey | RotateApiKey | RemoveApiKey] = []
        self.wiped = 0
        self.rotten: Machine | None = None
        self.faults = 0

    # --- for machines ---

    def at(self, node: NodeId | None) -> Machine | None:
        """The machine that is this node."""
        return next((m for m in self.machines if m.node == node), None)

    def named(self, node: str) -> Machine | None:
        """The same by a plain name."""
        return self.at(NodeId(node))

    def fail(self, what: str) -> None:
        """End with the story and how to have it told again."""
        again = f"SHOAL_TEST_SIM={self.plan.name}:{self.seed} pytest tests/sim -k replay -s"
        story = "\n".join(self.world.story[-80:])
        raise Broken(f"{what}\n{story}\n{self.world.now:.3f} {what}\nagain: {again}")

    # --- a schedule ---

    def start(self) -> None:
        """Everybody starts within a second."""
        for machine in self.machines:
            self.world.later(self.world.chance.random(), machine.start)

    def work(self, seconds: float) -> None:
        """Commands and facts from everywhere for so long."""
        chance, end = self.world.chance, self.world.now + seconds

        def some() -> None:
            if self.world.now >= end:
                return
            machine = chance.choice(self.machines)
            if machine.up and machine.paused is None:
                if chance.random() < 0.5 and self.commands < 150:
                    machine.want(self.command(machine))
                else:
                    name = f"{machine.name}-{self.world.now:.2f}"
                    machine.outbox.add(NodeJoined(node=machine.node, name=name))
            self.world.later(0.4 * chance.random(), some)

        some()

    def command(self, machine: Machine) -> Command:
        """Place another copy, or let one go that the asker knows; or change the voters."""
        if self.plan.forgets and (change := self.change(machine)) is not None:
            return change
        if self.plan.keys:
            return self.key_change(machine)
        known = machine.mirror.state.instances
        if self.plan.workers and known and self.world.chance.random() < 0.4:
            return self.wish(machine, "delete") or self.place()
        return self.place()

    def wish(self, machine: Machine, what: Literal["place", "delete"]) -> Command | None:
        """A command of this kind; None where the asker knows of nothing to delete."""
        if what == "place":
            return self.place()
        known = list(machine.mirror.state.instances)
        if not known:
            return None
        self.commands += 1
        return DeleteInstance(
            command_id=CommandId(f"c{self.commands}"),
            instance=InstanceId(self.world.chance.choice(known)),
        )

    def place(self) -> PlaceModel:
        """Another copy of the model."""
        self.commands += 1
        command_id = CommandId(f"c{self.commands}")
        return PlaceModel(command_id=command_id, model=MODEL, if_absent=False)

    def change(self, asker: Machine) -> Command | None:
        """Let a voter go that the asker does not hear, or back in one that was let go."""
        gone = set(asker.mirror.state.forgotten)
        unheard = {m.node for m in self.machines if not self.hears(asker, m)}
        nodes = sorted(gone | unheard) if len(gone) < 3 else sorted(gone)
        if not nodes or self.world.chance.random() < 0.1:
            return None
        node = self.world.chance.choice(nodes)
        self.commands += 1
        return ForgetNode(
            command_id=CommandId(f"c{self.commands}"), node=node, forgotten=node not in gone
        )

    def key_change(self, asker: Machine) -> Command:
        """Add an API key, or rotate or remove one that the asker knows."""
        self.commands += 1
        command_id, known = CommandId(f"c{self.commands}"), sorted(asker.mirror.state.api_keys)
        hashed = f"sha256:{self.commands:064x}"
        what = self.world.chance.choice(("add", "add", "rotate", "remove")) if known else "add"
        if what == "add":
            key_id = f"key-{self.commands:08x}"
            key = ApiKey(id=key_id, name=f"n{self.commands}", hash=hashed, scope="inference")
            made: AddApiKey | RotateApiKey | RemoveApiKey = AddApiKey(
                command_id=command_id, key=key
            )
        elif what == "rotate":
            key_id = self.world.chance.choice(known)
            made = RotateApiKey(command_id=command_id, key_id=key_id, hash=hashed)
        else:
            key_id = self.world.chance.choice(known)
            made = RemoveApiKey(command_id=command_id, key_id=key_id)
        self.key_commands.append(made)
        return made

    def hears(self, one: Machine, other: Machine) -> bool:
        """Whether what a machine says reaches another."""
        lives = other.up and other.paused is None
        return lives and (other.name, one.name) not in self.world.cut

    def suffer(self, seconds: float) -> None:
        """Faults of every kind for so long."""
        end = self.world.now + seconds
        while self.world.now < end:
            self.world.run(self.world.now + self.world.chance.random() * 2.0)
            self._fault()

    def heal(self) -> None:
        """The network is whole, everybody runs, all disks have room."""
        self.world.tell("everything heals")
        self.world.weather = Weather()
        self.world.cut.clear()
        for machine in self.machines:
            machine.disk.full = False
            if machine.up and machine.candidate.degraded:
                machine.kill()
            if not machine.up:
                machine.start()
            elif machine.paused is not None:
                machine.resume()
            machine.know()

    def settled(self) -> bool:
        """One holder, nobody who does not have its state, and no command without an answer."""
        holders = [m for m in self.machines if m.candidate.holding]
        if len(holders) != 1:
            return False
        state = holders[0].candidate.state
        if not all(m.worker is None or m.worker.matches() for m in self.machines):
            return False
        return all(
            m.candidate.state == state
            and m.mirror.state == state
            and not m.outbox.waiting
            and not m.open
            for m in self.machines
        )

    def settle(self) -> None:
        """Soon after healing everybody agrees, and then nobody campaigns any more."""
        patience_s = WORKED_S if self.plan.workers else HEALED_S
        # Facts are taken in their order; where messages overtake each other, one a second is.
        patience_s += max(len(machine.outbox.waiting) for machine in self.machines)
        for machine in self.machines:
            if machine.worker is not None:
                machine.worker.world.crash_per_s = 0.0
        underway_until = self.world.latest
        self.world.run(self.world.now + LATE_S)
        self._await(patience_s)
        # What was sent before and comes as late as this may be a command that is still wanted.
        self.world.run(max(self.world.now, underway_until))
        self._await(patience_s)
        before = len(self.checks.terms)
        self.world.run(self.world.now + QUIET_S)
        if len(self.checks.terms) != before or not self.settled():
            self.fail(f"not quiet after it had settled: {self.where()}")
        self._check_end()

    def _await(self, patience_s: float) -> None:
        end = self.world.now + patience_s
        while not self.settled():
            if self.world.now >= end:
                self.fail(f"not settled {patience_s:g} s after healing: {self.where()}")
            self.world.run(self.world.now + 0.25)

    def where(self) -> str:
        """Where everybody is."""
        return "; ".join(
            f"{m.node} {m.candidate.election.role} of {m.candidate.election.holder} "
            f"log {m.candidate.state.term}/{m.candidate.state.index} counter "
            f"{m.candidate.election.counter} mirror {m.mirror.state.term}/{m.mirror.state.index} "
            f"waiting {len(m.outbox.waiting)}"
            + ("" if m.worker is None or m.worker.matches() else " its runners do not match")
            for m in self.machines
        )

    def _check_end(self) -> None:
        state = self.machines[0].candidate.state
        self.checks.kept(state, "majority")
        if self.plan.size == 2 and not self.plan.workers and not self.wiped:
            self.checks.kept(state, "replicated")
        self._check_keys(state)
        most = 4 + self.faults
        if len(self.checks.terms) > most:
            self.fail(f"{len(self.checks.terms)} terms after {self.faults} faults: a storm")
        for machine in self.machines:
            boot, seq = state.facts[f"{machine.node}/worker"]
            if (boot, seq) != (machine.outbox.boot, machine.outbox.seq):
                self.fail(f"facts of {machine.node}: {boot} {seq} of {machine.outbox.seq}")

    def _check_keys(self, state: ClusterState) -> None:
        """A key that a majority let go is gone, one that a majority took is there unless its
        removal was asked for."""
        done = {one for one, told in self.checks.promises.items() if told.durability == "majority"}
        removals = [one for one in self.key_commands if isinstance(one, RemoveApiKey)]
        gone = {one.key_id for one in removals if one.command_id in done}
        added = [one for one in self.key_commands if isinstance(one, AddApiKey)]
        there = {one.key.id for one in added if one.command_id in done}
        there -= {one.key_id for one in removals}
        if wrong := (gone & set(state.api_keys)) | (there - set(state.api_keys)):
            self.fail(f"API keys are not as a majority has it: {sorted(wrong)}")
        if len({one.hash for one in state.api_keys.values()}) < len(state.api_keys):
            self.fail("two API keys have one secret")

    # --- faults ---

    def _fault(self) -> None:
        chance, world = self.world.chance, self.world
        self.faults += 1
        machine = chance.choice(self.machines)
        kind = chance.choice(
            ("kill", "kill", "leave", "leave", "power", "wipe", "pause", "sleep", "cut", "cut",
             "one-way", "bad", "full", "churn", *(("rot", "rot", "rot") if self.plan.rots else ()))
        )  # fmt: skip
        lasts_s = chance.choice((0.3, 1.0, 3.0, 6.0)) * (0.5 + chance.random())
        life = machine.life
        match kind:
            case "kill" | "power" | "wipe" if machine.up:
                machine.kill(power=kind == "power")
                lost = kind == "wipe" and not self.plan.forgets and not self.plan.rots
                if lost and self.wiped < max(1, (self.plan.voters - 1) // 2):
                    self.wiped += 1
                    machine.wipe()
                world.later(lasts_s, lambda: None if machine.up else machine.start())
            case "leave" if machine.up and machine.paused is None:
                machine.leave()
                world.later(lasts_s + 2.0, lambda: None if machine.up else machine.start())
            case "rot" if (machine := self.rotten or machine).up:
                self.rotten = machine
                machine.kill(power=chance.random() < 0.5)
                machine.rot()
                world.later(lasts_s, lambda: None if machine.up else machine.start())
            case "pause" | "sleep" if machine.up and machine.paused is None:
                machine.pause(asleep=kind == "sleep")
                world.later(
                    lasts_s,
                    lambda: (
                        machine.resume()
                        if machine.life == life and machine.paused is not None
                        else None
                    ),
                )
            case "cut" | "one-way":
                self._cut(one_way=kind == "one-way", lasts_s=lasts_s)
            case "bad":
                world.tell("bad weather")
                world.weather = Weather(
                    loss=chance.choice((0.02, 0.1, 0.4)), twice=0.1,
                    delay_s=chance.choice((0.005, 0.05, 0.4)), late=0.05,
                )  # fmt: skip
                world.later(lasts_s, self._clear_up)
            case "full":
                world.tell(f"{machine.node} has a full disk")
                machine.disk.full = True
                world.later(lasts_s, lambda: setattr(machine.disk, "full", False))
            case "churn":
                for other in self.machines:
                    if other.up and other.paused is None:
                        other.know(share=0.5)
            case _:
                return

    def _clear_up(self) -> None:
        self.world.weather = Weather()

    def _cut(self, *, one_way: bool, lasts_s: float) -> None:
        chance, world = self.world.chance, self.world
        names = [m.name for m in self.machines]
        chance.shuffle(names)
        split = chance.randint(1, len(names) - 1)
        pairs = {(a, b) for a in names[:split] for b in names[split:]}
        if not one_way:
            pairs |= {(b, a) for a, b in pairs}
        world.tell(
            f"cut {' '.join(names[:split])} {'->' if one_way else '|'} {' '.join(names[split:])}"
        )
        world.cut |= pairs

        def mend() -> None:
            world.tell("mended")
            world.cut -= pairs

        world.later(lasts_s, mend)


def run_schedule(plan: Plan, seed: int) -> Cluster:
    """One whole schedule: start, suffer under load, heal, settle. Raises Broken."""
    cluster = Cluster(plan, seed)
    cluster.start()
    cluster.world.run(1.0 + 4.0 * cluster.world.chance.random())
    cluster.work(14.0)
    cluster.suffer(12.0)
    cluster.heal()
    cluster.settle()
    return cluster
