"""One machine: its disk, its clock, a real candidate, and a client with real mirror and outbox.

Only the shell is simulated: it does a candidate's actions in their order, to a disk that may
lose what was not synced and a network that may lose anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bus.replica.mirror import Mirror
from bus.replica.outbox import Outbox
from bus.replica.state import ClusterState
from bus.wire.ids import Boot, CommandId, NodeId
from bus.wire.messages.commands import Acknowledged, Command
from bus.wire.messages.control import (
    AskEvents,
    AskSnapshot,
    EventsFound,
    Snapshot,
    TellFact,
    TermHeartbeat,
)
from bus.wire.messages.events import (
    Event,
    EventBody,
    LoadRefused,
    NodeJoined,
    RunnerEnded,
    RunnerUnloaded,
    TermOpened,
)
from master.consensus.actions import Act, Append, PublishEvent, Replace, Send, Spread
from master.consensus.candidate import Candidate
from master.consensus.types import (
    Beat,
    OpenTerm,
    PeersKnown,
    PersistentState,
    PersistTerm,
    StepDown,
    SwitchboardUp,
)
from master.decisions.crash_loop import Breaker
from master.decisions.decide import Decided, Known
from master.decisions.observations import View
from master.decisions.planner import follow_up, repairs
from master.decisions.prune import Watch, silent
from master.log.replication import Answers
from master.log.sequencer import fact_event, judge, next_event
from tests.sim.keeper import Keeper
from tests.sim.office import decided, read, scene_of

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

TICK_S = 0.1
HEARTBEAT_S = 0.5
REPEAT_S = 1.0
KEEP_S = 0.25
GRACE_S = 8.0


@dataclass
class Disk:
    """What survives a process. A power cut takes a part of what was not synced."""

    term: PersistentState = field(default_factory=PersistentState)
    base: ClusterState = field(default_factory=ClusterState)
    events: list[Event] = field(default_factory=list[Event])
    synced: int = 0
    full: bool = False

    def log(self) -> tuple[ClusterState, list[Event]]:
        """What a starting candidate reads."""
        return self.base, list(self.events)


class Machine:
    """A node. `life` counts its process lives; what belongs to an older one is void."""

    def __init__(self, name: str, cluster: Cluster, *, voters: frozenset[NodeId]) -> None:
        self.name = name
        self.voters = voters
        self.cluster = cluster
        self.world = cluster.world
        self.node = NodeId(name)
        self.disk = Disk()
        self.life = 0
        self.up = False
        self.paused: list[Callable[[], None]] | None = None
        self.asleep = False
        chance = cluster.world.chance
        self.clock = (100.0 * chance.random() + 1.0, 0.97 + 0.06 * chance.random())
        self.identities = 1
        self.boots = 0
        self.outbox = Outbox(self.node, "worker", Boot("b0"))
        self.mirror = Mirror()
        self.open: dict[CommandId, tuple[Command, float]] = {}
        self.answers = Answers()
        self.flushing = self.counting = False
        self.candidate = self._candidate()
        self.breaker = Breaker()
        self.view, self.watch = View(), Watch(GRACE_S)
        self.keeper = Keeper(self) if cluster.plan.workers else None

    # --- its life ---

    @property
    def now(self) -> float:
        """This machine's clock: its own start, its own pace."""
        start, pace = self.clock
        return start + pace * self.world.now

    def start(self) -> None:
        """Processes start from what the disk holds."""
        self.life += 1
        self.up, self.paused, self.flushing = True, None, False
        self.counting = self.disk.full
        self.answers = Answers()
        self.view = View()
        self.candidate = self._candidate()
        self.mirror = Mirror()
        self.boots += 1
        self.outbox = Outbox(self.node, "worker", Boot(f"b{self.boots}"))
        self.outbox.add(NodeJoined(node=self.node, name=self.name))
        if self.keeper is not None:
            self.keeper.begin()
            self._every(KEEP_S, self.keeper.tick)
        self.world.tell(f"{self.node} starts at counter {self.candidate.election.counter}")
        self._every(TICK_S, self._tick)
        self._every(HEARTBEAT_S, self._upkeep)
        self.know()
        self.do(self.candidate.stimulated(SwitchboardUp(), self.now))

    def kill(self, *, power: bool = False) -> None:
        """Its processes end at once; with the power, what was not synced may be gone."""
        self.world.tell(f"{self.node} {'loses power' if power else 'is killed'}")
        self.up, self.life = False, self.life + 1
        self.open.clear()
        disk = self.disk
        if power:
            keep = self.world.chance.randint(disk.synced, len(disk.events))
            del disk.events[keep:]
            if self.keeper is not None:
                self.keeper.lose_power()

    def wipe(self) -> None:
        """The disk is lost and with it the name: what comes back is another node."""
        self.identities += 1
        self.node = NodeId(f"{self.name}{self.identities}")
        self.disk = Disk()

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

    def _candidate(self) -> Candidate:
        return Candidate.from_log(
            self.node, self.disk.term, self.disk.log(),
            voters=self.voters, degraded=self.counting,
        )  # fmt: skip

    def _every(self, period_s: float, action: Callable[[], None]) -> None:
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

    # --- the candidate's shell ---

    def know(self, share: float = 1.0) -> None:
        """Membership names the other machines, or only some while connections churn."""
        chance, machines = self.world.chance, self.cluster.machines
        others = (m.node for m in machines if m is not self)
        names = frozenset(node for node in others if share == 1.0 or chance.random() < share)
        self.do(self.candidate.stimulated(PeersKnown(names), self.now))

    def heard(self, message: Any) -> None:
        """What another candidate says, a holder publishes or answers."""
        self.do(self.candidate.heard(message, self.now))
        if isinstance(message, TermHeartbeat):
            self.flush_soon()
        self.give()

    def _tick(self) -> None:
        self.do(self.candidate.ticked(self.now))
        self.give()
        ask = self.mirror.due(self.now)
        if ask is not None:
            self.ask(ask)
        for told in self.outbox.due(self.now) if self.keeper is None else ():
            self.ask(told)
        for command, asked_at in list(self.open.values()):
            if self.now - asked_at >= REPEAT_S:
                self.want(command)

    def _upkeep(self) -> None:
        self.do([Spread(self.candidate.candidacy((), self.now))])
        for machine in self.cluster.machines if self.keeper is not None else ():
            read(machine, self)
        if self.keeper is not None and self.candidate.holding:
            for body in silent(scene_of(self), self.watch):
                self.index(body)

    def do(self, actions: list[Act]) -> None:
        """A candidate's actions, in order, as `master.consensus.shell` does them."""
        disk = self.disk
        for action in actions:
            match action:
                case PersistTerm():
                    if disk.full and self.candidate.election.voted:
                        self.do(self.candidate.synced(self.now, degraded=True))
                        return
                    disk.term = replace(
                        disk.term, counter=action.counter, voted_for=action.voted_for
                    )
                case OpenTerm(counter=counter):
                    self.cluster.checks.opened(self, counter)
                    self.breaker = Breaker()
                    self.watch.begin(self.now)
                    self.index(TermOpened(holder=self.node, counter=counter))
                    for body in repairs(self.candidate.state):
                        self.index(body)
                case StepDown(why=why):
                    self.world.tell(f"{self.node} steps down: {why}")
                    self.answers.drop()
                case Beat():
                    self._publish(self.candidate.beat(()))
                case Append(event=event):
                    self.cluster.checks.appended(self, event)
                    self.counting = self.counting or disk.full
                    if not self.counting:
                        disk.events.append(event)
                    self.flush_soon()
                case Replace(state=state):
                    self.world.tell(f"{self.node} takes a snapshot of {state.term}/{state.index}")
                    if not self.counting:
                        disk.base, disk.events, disk.synced = state, [], 0
                    self.flush_soon()
                case PublishEvent(event=event):
                    self._publish(event)
                case Send(to=to, message=message):
                    self._send(to, message)
                case Spread(message=message):
                    for machine in self.cluster.machines:
                        if machine is not self:
                            self._send(machine.node, message)

    def index(self, body: EventBody, command_id: CommandId | None = None) -> Event:
        """As the holder."""
        candidate = self.candidate
        event = next_event(
            candidate.state, body, term=candidate.election.counter, at_s=0.0,
            command_id=command_id, holder=self.node,
        )  # fmt: skip
        self.do(candidate.appended(event, self.now))
        return event

    def flush_soon(self) -> None:
        if not self.flushing:
            self.flushing = True
            self.world.later(
                0.001 * self.world.chance.random(), self.receive(self._flush, own=True)
            )

    def _flush(self) -> None:
        self.flushing = False
        disk = self.disk
        self.counting = self.counting or disk.full
        if not self.counting:
            disk.synced = len(disk.events)
        if self.candidate.began and not self.counting:
            disk.term = replace(disk.term, began=True)
        self.do(self.candidate.synced(self.now, degraded=self.counting))
        self.give()

    def give(self) -> None:
        """Answers that are safe."""
        if not self.candidate.holding:
            return
        self.cluster.checks.committed(self)
        for asker, answer in self.answers.ripe(self.candidate.standing(self.now), self.now):
            to = self.cluster.named(asker.decode())
            self.cluster.checks.promised(self, answer)
            if to is not None:
                self.world.post(
                    self.name, to.name, to.receive(lambda to=to, a=answer: to.answered(a))
                )

    def _publish(self, message: Any) -> None:
        for machine in self.cluster.machines:
            if machine is not self:
                self.world.post(
                    self.name, machine.name, machine.receive(lambda m=machine: m.heard(message))
                )
            self.world.post(
                self.name, machine.name, machine.receive(lambda m=machine: m.follow(message))
            )

    def _send(self, to: NodeId, message: Any) -> None:
        machine = self.cluster.at(to)
        if machine is None:
            return
        if isinstance(message, AskSnapshot | AskEvents):
            self.world.post(
                self.name, machine.name,
                machine.receive(lambda: machine.found(message, self, self.heard)),
            )  # fmt: skip
        else:
            self.world.post(
                self.name, machine.name, machine.receive(lambda: machine.heard(message))
            )

    # --- what is asked of a holder ---

    def found(self, ask: Any, asker: Machine, answer: Callable[[Any], None]) -> None:
        """A follower's question; the answer goes back to whom it came from."""
        found = self.candidate.found(ask)
        if isinstance(found, Snapshot | EventsFound):
            self.world.post(self.name, asker.name, asker.receive(lambda: answer(found)))

    def asked(self, command: Command, asker: Machine) -> None:
        """A command, decided as the master does."""
        self.do(self.candidate.ticked(self.now))
        candidate, command_id = self.candidate, command.command_id
        if not candidate.holding:
            if candidate.minority(self.now) is not None:
                self.cluster.checks.refused += 1
            return
        decision = decided(command, self, asker)
        if isinstance(decision, Decided):
            for body in decision.events[:-1]:
                self.index(body)
            index = self.index(decision.events[-1], command_id).index
        elif isinstance(decision, Known):
            index = decision.index
        else:
            self.world.post(self.name, asker.name, asker.receive(lambda: asker.refused(command_id)))
            return
        answer = Acknowledged(
            command_id=command_id, term=candidate.election.counter, index=index,
            durability="volatile",
        )  # fmt: skip
        self.answers.add(str(asker.node).encode(), answer, self.now)
        self.flush_soon()

    def taken(self, told: TellFact) -> None:
        """A fact, and what follows from it."""
        self.do(self.candidate.ticked(self.now))
        candidate, before = self.candidate, self.candidate.state
        if not candidate.holding or judge(before, told) != "next":
            return
        event = fact_event(
            before, told, term=candidate.election.counter, at_s=0.0, holder=self.node
        )
        self.do(candidate.appended(event, self.now))
        if isinstance(told.fact, RunnerEnded | LoadRefused | RunnerUnloaded):
            known = before.instances.get(told.fact.instance)
            for body in follow_up(known, told.fact, self.breaker, self.now):
                self.index(body)

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
        if self.keeper is not None:
            self.keeper.follow()
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
