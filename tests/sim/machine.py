"""One machine: its disk, its clock, a real candidate, and a client with real mirror and outbox.

Real: the candidate's shell with its journal and its term file, the holder's duties, mirror and
outbox. Simulated: what the shell is given (the disk's files, the timers, the links) and the clock.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bus.links.transport import Change
from bus.process.logs import Log
from bus.replica.mirror import Mirror
from bus.replica.outbox import Outbox
from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import Boot, CommandId, InstanceId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.commands import Acknowledged, Command
from bus.wire.messages.control import (
    AskEvents,
    AskSnapshot,
    EventsFound,
    Snapshot,
    TellFact,
    TermHeartbeat,
)
from bus.wire.messages.events import Event, NodeJoined
from bus.wire.messages.peers import AppendAck
from master.consensus.candidate import CandidateSettings
from master.consensus.shell import CandidateShell
from master.consensus.term_file import TermFile
from master.consensus.votes import minority
from master.decisions.decide import Policy, decide
from master.decisions.holder import Holder
from master.log.archives import Archives
from master.log.journal import Journal
from master.log.sequencer import LogDraft
from tests.sim.disk import Disk
from tests.sim.simulated_holder import decided, peers_reading, read
from tests.sim.simulated_worker import SimulatedWorker

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

TICK_S = 0.1
READ_S = 0.5
REPEAT_S = 1.0
KEEP_S = 0.25
GRACE_S = 8.0
PAUSE_S = 1.0
RECORDS = 150
"""So many events fit into a journal's file."""
FOLDER = Path("/journal")
JOURNAL_FILE = FOLDER / "events.log"
TERM_FILE = Path("/term")


class Story(Log):
    """The log of a machine's processes is a part of the story."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(node=machine.name, process="master", stream=io.StringIO())
        self.machine = machine

    def _write(self, level: str, message: str, fields: Mapping[str, object]) -> None:
        facts = " ".join(f"{name}={value}" for name, value in fields.items())
        self.machine.world.tell(f"{self.machine.node} {message} {facts}")


class NoArchives(Archives):
    """What gave way to a new file is gone."""

    def resume(self) -> None:
        return None

    def take(self, path: Path, name: str) -> None:
        return None

    def finish(self) -> None:
        return None


class WatchedJournal(Journal):
    """The journal, and what is checked of each event."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(
            FOLDER, machine.log, files=machine.disk, archives=NoArchives(FOLDER, machine.log),
            max_records=RECORDS, low_disk_bytes=1,
        )  # fmt: skip
        self.machine = machine

    def append(self, event: Event, *, state_after: ClusterState) -> None:
        self.machine.cluster.checks.appended(self.machine, event)
        super().append(event, state_after=state_after)


class MachineTimers:
    """Timers of one life of a machine, by its clock."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def now(self) -> float:
        return self.machine.now

    def later(self, delay_s: float, action: Callable[[], None], /) -> None:
        world = self.machine.world
        waits_s = delay_s / self.machine.clock[1] + 0.001 * world.chance.random()
        world.later(waits_s, self.machine.receive(action, own=True))

    def every(self, period_s: float, action: Callable[[], None], /) -> None:
        self.machine.every(period_s, action)


class MachineWire:
    """The links of a candidate in the simulated network. Candidates hear heartbeats from links
    and events from what is published; clients hear what is published."""

    addresses: tuple[str, ...] = ()

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.nodes: frozenset[NodeId] = frozenset()
        self.on_change: Callable[[Change], None] = lambda _change: None

    def listen(
        self, on_message: Callable[[Any], None], on_change: Callable[[Change], None]
    ) -> None:
        self.on_change = on_change

    def know(self, addresses: Mapping[NodeId, tuple[str, ...]]) -> None:
        self.nodes |= frozenset(addresses)

    def meet(self, node: NodeId, addresses: tuple[str, ...]) -> None:
        if node not in self.nodes and node != self.machine.node:
            self.nodes |= {node}

    def send(self, node: NodeId, message: Any) -> bool:
        mine, machine = self.machine, self.machine.cluster.at(node)
        if machine is None:
            return False
        if isinstance(message, AppendAck):
            mine.cluster.checks.said_to_have(mine, message)
        if isinstance(message, AskSnapshot | AskEvents):
            deliver = machine.receive(lambda: machine.found(message, mine, mine.heard))
        else:
            deliver = machine.receive(lambda: machine.heard(message))
        mine.world.post(mine.name, machine.name, deliver)
        return True

    def spread(self, message: Any) -> None:
        for machine in self.machine.cluster.machines:
            if machine.node in self.nodes:
                self.send(machine.node, message)

    def publish(self, message: Event | TermHeartbeat) -> None:
        mine = self.machine
        for machine in mine.cluster.machines:
            if machine is not mine and isinstance(message, Event):
                heard = machine.receive(lambda m=machine: m.heard(message))
                mine.world.post(mine.name, machine.name, heard)
            followed = machine.receive(lambda m=machine: m.follow(message))
            mine.world.post(mine.name, machine.name, followed)

    def look_after(self) -> None:
        return None

    def close(self) -> None:
        return None


class MachineDuties:
    """A term of a machine's candidate: what is checked of it, and the real duties."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def opened(self) -> LogDraft:
        draft = self.machine.draft()
        self.machine.cluster.checks.opened(self.machine, draft.term)
        self.machine.holder.opened(draft, self.machine.now)
        return draft

    def undone(self, changes: Sequence[Event], copies: Sequence[Instance]) -> None:
        self.machine.undone += [str(event.command_id) for event in changes]
        self.machine.undone += [str(copy.instance) for copy in copies]

    def answered(self, asker: bytes, answer: Acknowledged) -> None:
        machine = self.machine
        machine.cluster.checks.committed(machine)
        machine.cluster.checks.promised(machine, answer)
        to = machine.cluster.named(asker.decode())
        if to is not None:
            deliver = to.receive(lambda: to.answered(answer))
            machine.world.post(machine.name, to.name, deliver)


class Machine:
    """A node. `life` counts its process lives; what belongs to an older one is void."""

    def __init__(self, name: str, cluster: Cluster, *, voters: frozenset[NodeId]) -> None:
        self.name = name
        self.voters = voters
        self.cluster = cluster
        self.world = cluster.world
        self.node = NodeId(name)
        self.log = Story(self)
        self.disk = self._new_disk()
        self.life = 0
        self.up = False
        self.paused: list[Callable[[], None]] | None = None
        self.asleep = False
        self.undone: list[str] = []
        chance = cluster.world.chance
        self.clock = (100.0 * chance.random() + 1.0, 0.97 + 0.06 * chance.random())
        self.identities = 1
        self.boots = 0
        self.instances = 0
        self.outbox = Outbox(self.node, "worker", Boot("b0"))
        self.mirror = Mirror()
        self.open: dict[CommandId, tuple[Command, float]] = {}
        self.heard_at: dict[NodeId, float] = {}
        self._begin()
        self.worker = SimulatedWorker(self) if cluster.plan.workers else None

    # --- its life ---

    @property
    def now(self) -> float:
        """This machine's clock: its own start, its own pace."""
        start, pace = self.clock
        return start + pace * self.world.now

    def start(self) -> None:
        """Processes start from what the disk holds."""
        self.life += 1
        self.up, self.paused = True, None
        self._begin()
        self.mirror = Mirror()
        self.heard_at.clear()
        self.boots += 1
        self.outbox = Outbox(self.node, "worker", Boot(f"b{self.boots}"))
        self.outbox.add(NodeJoined(node=self.node, name=self.name))
        if self.worker is not None:
            self.worker.begin()
            self.every(KEEP_S, self.worker.tick)
            self.every(READ_S, self._read)
        self.world.tell(f"{self.node} starts at counter {self.candidate.election.counter}")
        self.every(TICK_S, self._tick)
        self.shell.begin()
        self.know()
        self.wire.on_change("connected")

    def leave(self) -> None:
        """Its processes are told to end in good order; then it is switched off."""
        life = self.life
        self.world.tell(f"{self.node} is told to end")

        def left() -> None:
            if self.life == life and self.up:
                self.shell.close()
                self.kill(power=True)

        self.shell.leave(lambda: self.world.later(0.0, left))

    def kill(self, *, power: bool = False) -> None:
        """Its processes end at once; with the power, what was not synced may be gone."""
        self.world.tell(f"{self.node} {'loses power' if power else 'is killed'}")
        self.up, self.life = False, self.life + 1
        self.open.clear()
        if power:
            self.disk.lose_power(self.world.chance)
            if self.worker is not None:
                self.worker.lose_power()

    def wipe(self) -> None:
        """The disk is lost and with it the name: what comes back is another node."""
        self.identities += 1
        self.node = NodeId(f"{self.name}{self.identities}")
        self.disk = self._new_disk()

    def rot(self) -> None:
        """A bit of its journal flips while it is down."""
        self.world.tell(f"{self.node}'s disk rots")
        self.disk.rot(JOURNAL_FILE, self.world.chance)

    def pause(self, *, asleep: bool) -> None:
        """Frozen processes find their messages when they go on; a sleeper's are lost."""
        self.world.tell(f"{self.node} {'sleeps' if asleep else 'freezes'}")
        self.paused, self.asleep = [], asleep

    def resume(self) -> None:
        """It goes on where it was, and its clock has gone on without it."""
        waited, self.paused = self.paused or [], None
        self.world.tell(f"{self.node} goes on")
        for action in waited:
            action()

    def _new_disk(self) -> Disk:
        """Without votes a term that could not be kept is used all the same, and may be opened
        again after a restart: a known limit, so there is always room for it here."""
        return Disk() if self.voters else Disk(TERM_FILE.with_suffix(".new"))

    def _begin(self) -> None:
        works = self.cluster.plan.workers
        self.holder = Holder(
            Policy(), self._new_instance, settle_grace_s=GRACE_S, longest_pause_s=PAUSE_S,
            decide=decide if works else partial(decided, holder=self),
        )  # fmt: skip
        self.wire = MachineWire(self)
        journal, term_file = WatchedJournal(self), TermFile(TERM_FILE, self.log, self.disk)
        settings = CandidateSettings(FOLDER, TERM_FILE, voters=tuple(sorted(self.voters)))
        self.shell = CandidateShell(
            self.node, settings, self.log, timers=MachineTimers(self), wire=self.wire,
            journal=journal, term_file=term_file, duties=MachineDuties(self),
        )  # fmt: skip
        self.candidate = self.shell.candidate

    def _new_instance(self) -> InstanceId:
        self.instances += 1
        return InstanceId(f"i-{self.node}-{self.instances}")

    def every(self, period_s: float, action: Callable[[], None]) -> None:
        """Have something done again and again in this life."""
        life = self.life

        def again() -> None:
            if self.life != life:
                return
            self.world.later(period_s / self.clock[1], again)
            if self.paused is None:
                action()

        self.world.later(period_s * self.world.chance.random(), again)

    def receive(self, action: Callable[[], None], *, own: bool = False) -> Callable[[], None]:
        """A delivery to this life of the machine, whenever it can take it; what is its `own`
        is not lost in sleep."""
        life = self.life

        def deliver() -> None:
            if self.life != life or not self.up:
                return
            if self.paused is None:
                action()
            elif own or not self.asleep:
                self.paused.append(deliver)

        return deliver

    # --- its candidate ---

    def know(self, share: float = 1.0) -> None:
        """Membership names the other machines, or only some while connections churn."""
        chance, machines = self.world.chance, self.cluster.machines
        others = (m.node for m in machines if m is not self)
        named = [node for node in others if share == 1.0 or chance.random() < share]
        self.shell.know({node: (f"sim://{node}",) for node in named})

    def heard(self, message: Any) -> None:
        """What another candidate says, a holder publishes or answers."""
        self.shell.receive(message)
        if self.candidate.holding:
            self.cluster.checks.committed(self)

    def _tick(self) -> None:
        ask = self.mirror.due(self.now)
        if ask is not None:
            self.ask(ask)
        for told in self.outbox.due(self.now) if self.worker is None else ():
            self.ask(told)
        for command, asked_at in list(self.open.values()):
            if self.now - asked_at >= REPEAT_S:
                self.want(command)

    def _read(self) -> None:
        for machine in self.cluster.machines:
            read(machine, self)
            if self.worker is not None and self.cluster.hears(self, machine):
                self.heard_at[machine.node] = self.now
        peers = peers_reading(self.node, self.heard_at, self.now)
        self.holder.view.hear(peers, self.now)
        if self.candidate.election.decides:
            draft = self.draft()
            self.holder.planned(draft, self.now)
            self.shell.append(draft)

    def draft(self) -> LogDraft:
        """What follows our log."""
        candidate = self.candidate
        return LogDraft(candidate.state, candidate.election.counter, self.node, 0.0)

    # --- what is asked of a holder ---

    def found(self, ask: Any, asker: Machine, answer: Callable[[Any], None]) -> None:
        """A follower's question; the answer goes back to whom it came from."""
        found = self.candidate.reply_to(ask)
        if isinstance(found, Snapshot | EventsFound):
            self.world.post(self.name, asker.name, asker.receive(lambda: answer(found)))

    def asked(self, command: Command, asker: Machine) -> None:
        """A command, decided as the master does."""
        self.shell.tick()
        candidate, command_id = self.candidate, command.command_id
        if not candidate.election.decides:
            if minority(candidate.election, self.now) is not None:
                self.cluster.checks.refused += 1
            return
        draft, unsettled = self.draft(), candidate.unsettled(command, self.now)
        self.cluster.asked_by[command_id] = asker.node
        known = self.holder.take_command(command, draft, self.now, unsettled=unsettled)
        self.shell.append(draft)
        if known is None or isinstance(known, Refusal):
            self.world.post(self.name, asker.name, asker.receive(lambda: asker.refused(command_id)))
            return
        answer = Acknowledged(
            command_id=command_id, term=draft.term, index=known.index, durability="volatile",
        )  # fmt: skip
        self.shell.answer(str(asker.node).encode(), answer)

    def taken(self, told: TellFact) -> None:
        """A fact, and what follows from it."""
        self.shell.tick()
        if self.candidate.election.decides:
            draft = self.draft()
            self.holder.take_fact(told, draft, self.now)
            self.shell.append(draft)

    # --- its client ---

    def follow(self, message: Any) -> None:
        """What the services of this machine make of the wire."""
        if isinstance(message, Event):
            ask = self.mirror.heard_event(message, self.now)
        elif isinstance(message, TermHeartbeat):
            ask = self.mirror.heard_heartbeat(message, self.now)
        elif isinstance(message, Snapshot):
            ask = self.mirror.heard_snapshot(message, self.now)
        else:
            ask = self.mirror.heard_found(message, self.now)
        self.moved()
        if ask is not None:
            self.ask(ask)

    def moved(self) -> None:
        """The client's state may have changed."""
        self.outbox.seen(self.mirror.state)
        if self.worker is not None:
            self.worker.follow()
        self.cluster.checks.mirrored(self)

    def want(self, command: Command) -> None:
        """A client of this machine wants something of the holder, and repeats it."""
        self.open[command.command_id] = (command, self.now)
        holder = self.cluster.at(self.mirror.holder)
        if holder is not None:
            self.world.post(
                self.name, holder.name, holder.receive(lambda: holder.asked(command, self))
            )

    def answered(self, answer: Acknowledged) -> None:
        """The holder has answered."""
        if self.open.pop(answer.command_id, None) is not None:
            self.cluster.checks.acknowledged(self, answer)

    def refused(self, command_id: CommandId) -> None:
        """The holder has said no."""
        self.open.pop(command_id, None)

    def ask(self, question: Any) -> None:
        holder = self.cluster.at(self.mirror.holder)
        if holder is None:
            return
        if isinstance(question, TellFact):
            self.world.post(self.name, holder.name, holder.receive(lambda: holder.taken(question)))
        else:
            self.world.post(
                self.name, holder.name,
                holder.receive(lambda: holder.found(question, self, self.follow)),
            )  # fmt: skip
