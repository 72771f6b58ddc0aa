"""What must hold at every step of a simulation, and what is counted on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bus.replica.state import ClusterState
from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.commands import Acknowledged
from bus.wire.messages.events import Event, InstancePlaced
from bus.wire.messages.peers import AppendAck
from tests.sim.simulated_holder import overbooked

if TYPE_CHECKING:
    from tests.sim.machine import Machine

Place = tuple[int, NodeId | None, int]


@dataclass
class Checks:
    """`fail` ends the schedule with its story. `terms` are those opened, in order."""

    fail: Callable[[str], None]
    terms: list[tuple[int, NodeId]] = field(default_factory=list[tuple[int, NodeId]])
    by_votes: dict[int, NodeId] = field(default_factory=dict[int, NodeId])
    entries: dict[Place, Event] = field(default_factory=dict[Place, Event])
    sealed: dict[int, Place] = field(default_factory=dict[int, Place])
    sealed_upto: int = 0
    promises: dict[CommandId, Acknowledged] = field(default_factory=dict[CommandId, Acknowledged])
    heard: dict[str, int] = field(default_factory=dict[str, int])
    states: dict[Place, ClusterState] = field(default_factory=dict[Place, ClusterState])
    refused: int = 0
    looks: int = 0

    def opened(self, machine: Machine, counter: int) -> None:
        """A term is held by at most one; with votes, its counter too; and its holder's log has
        everything that was committed before."""
        term = (counter, machine.node)
        if term in self.terms:
            self.fail(f"{term} was opened twice")
        self.terms.append(term)
        if not machine.candidate.election.voted:
            return
        if counter in self.by_votes:
            self.fail(f"{counter} is held by {self.by_votes[counter]} and {machine.node}")
        self.by_votes[counter] = machine.node
        self._keeps_sealed(machine)

    def appended(self, machine: Machine, event: Event) -> None:
        """One place of one term's log is one event, on every machine."""
        place = (event.term, event.holder, event.index)
        known = self.entries.setdefault(place, event)
        if known is not event and known != event:
            self.fail(f"{machine.node} has another event at {place}")
        if isinstance(event.body, InstancePlaced) and event.holder == machine.node:
            node = overbooked(machine)
            if node is not None:
                self.fail(f"{machine.node} has reserved more on {node} than it has")

    def said_to_have(self, machine: Machine, ack: AppendAck) -> None:
        """What a follower says it has survives a power cut."""
        if ack.index and machine.disk.unsynced_bytes():
            self.fail(f"{machine.node} says it has {ack.index}, which its disk may lose")

    def committed(self, machine: Machine) -> None:
        """What a majority has on disk never changes."""
        upto = machine.candidate.committed
        if upto is None or upto <= self.sealed_upto:
            return
        events = machine.candidate.log.history.events
        for index in range(self.sealed_upto + 1, upto + 1):
            if index in events:
                self.sealed[index] = (events[index].term, events[index].holder, index)
        self.sealed_upto = upto

    def promised(self, machine: Machine, answer: Acknowledged) -> None:
        """An answer goes out: what changed something is in the log of the one who gives it."""
        known = machine.candidate.state.commands.get(answer.command_id)
        if known is None and machine.cluster.plan.workers:
            return
        if known is None or known[0] != answer.index:
            self.fail(f"{machine.node} acknowledges {answer.command_id} it does not have")
        before = self.promises.get(answer.command_id)
        if before is None or WORTH[answer.durability] > WORTH[before.durability]:
            self.promises[answer.command_id] = answer

    def acknowledged(self, _machine: Machine, answer: Acknowledged) -> None:
        """An asker has heard."""
        self.heard[answer.durability] = self.heard.get(answer.durability, 0) + 1

    def mirrored(self, machine: Machine) -> None:
        """Mirrors at the same place hold the same state (looked at now and then: it is dear)."""
        self.looks += 1
        if self.looks % 16 == 0:
            self.same_state(machine.mirror.state)

    def same_state(self, state: ClusterState) -> None:
        """This state is that of its place."""
        place = (state.term, state.holder, state.index)
        known = self.states.setdefault(place, state)
        if known is not state and known != state:
            self.fail(f"two states at {place}")

    def kept(self, state: ClusterState, durability: str) -> None:
        """Whatever was acknowledged as so durable is there, at its place."""
        for command_id, answer in self.promises.items():
            if answer.durability != durability:
                continue
            known = state.commands.get(command_id)
            if known is None or (durability == "majority" and known[0] != answer.index):
                self.fail(f"{command_id} was {durability} at {answer.index} and is lost")

    def _keeps_sealed(self, machine: Machine) -> None:
        candidate = machine.candidate
        if candidate.state.index < self.sealed_upto:
            self.fail(f"{machine.node} lacks what is committed up to {self.sealed_upto}")
        for index, place in self.sealed.items():
            event = candidate.log.history.events.get(index)
            if event is not None and (event.term, event.holder, index) != place:
                self.fail(f"{machine.node} has another event at the committed {place}")
        self.kept(candidate.state, "majority")


WORTH = {"volatile": 0, "local": 1, "replicated": 2, "majority": 3}
