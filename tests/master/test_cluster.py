"""Several real masters with real journals on real sockets, in one reactor. They share one
switchboard; each has its own ROUTER, and DEALERs to those of the others."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bus.client import BusClient, Speaker
from bus.links.reactor import PollReactor
from bus.process.endpoints import Endpoints
from bus.process.logs import Log
from bus.replica.state import ClusterState, apply
from bus.switchboard.switchboard import Switchboard
from bus.wire.ids import Boot, CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.commands import Acknowledged, CommandRefused, ForgetNode, KeepAlive
from bus.wire.messages.events import InstancePlaced, NodeJoined, RunnerReady
from master.consensus.candidate import CandidateSettings
from master.consensus.term_file import read_term
from master.consensus.types import LAPSE_S
from master.log.journal import Journal
from master.log.sequencer import LogDraft
from master.service import Master, MasterSettings

pytestmark = pytest.mark.slow

Answer = Acknowledged | CommandRefused
FAILOVER_S = 3.0


@dataclass(frozen=True, slots=True)
class Endpoint(Endpoints):
    """A shared folder with a ROUTER for each node."""

    node: str = ""

    @property
    def candidate(self) -> str:
        return self._ipc(f"{self.node}.ask")


class Town:
    """Nodes by name; masters come and go, workers' clients stay."""

    def __init__(self, folder: Path, runtime: str) -> None:
        self.folder, self.runtime = folder, runtime
        self.reactor = PollReactor()
        self.log = Log(node="town", process="test", level="critical")
        self.switchboard = Switchboard(Endpoints(runtime), self.reactor, self.log)
        self.masters: dict[str, Master] = {}
        self.workers: dict[str, BusClient] = {}
        self.voters: tuple[NodeId, ...] = ()
        self.boots = 0

    def client(self, node: str, process: str, *, follow: bool) -> BusClient:
        self.boots += 1
        speaker = Speaker(NodeId(node), process, Boot(f"boot{self.boots}"))
        endpoints = Endpoint(self.runtime, node)
        return BusClient(speaker, endpoints, self.reactor, self.log, follow=follow)

    def start(self, node: str) -> Master:
        home = self.folder / node
        home.mkdir(exist_ok=True)
        seat = CandidateSettings(home / "journal", home / "term", voters=self.voters)
        client = self.client(node, "master", follow=False)
        master = Master(client, self.reactor, self.log, MasterSettings(seat))
        self.masters[node] = master
        if node not in self.workers:
            self.workers[node] = self.client(node, "worker", follow=True)
            self.workers[node].tell(NodeJoined(node=NodeId(node), name=node))
        self.introduce()
        return master

    def introduce(self) -> None:
        """Membership: everybody that runs is known to everybody."""
        where = {NodeId(n): (Endpoint(self.runtime, n).candidate,) for n in self.masters}
        for node, master in self.masters.items():
            master.shell.know({n: w for n, w in where.items() if n != node})

    def stop(self, node: str) -> None:
        self.masters.pop(node).close()

    def until(self, condition: Callable[[], bool], what: str, within_s: float = 30.0) -> float:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < within_s, f"not in time: {what}"
            self.reactor.turn(0.02)
        return time.monotonic() - began

    def holder(self) -> str | None:
        holders = [node for node, master in self.masters.items() if master.candidate.holding]
        return holders[0] if len(holders) == 1 else None

    def agree(self) -> bool:
        """One holder, and every journal and mirror is where it is."""
        holder = self.holder()
        if holder is None:
            return False
        state = self.masters[holder].candidate.state
        return all(m.candidate.state == state for m in self.masters.values()) and all(
            w.state == state and not w.outbox.waiting for w in self.workers.values()
        )

    def ask(self, node: str, command: KeepAlive | ForgetNode) -> Answer:
        answers: list[Answer] = []
        self.workers[node].command(command, answers.append, deadline_s=20.0)
        self.until(lambda: bool(answers), "an answer")
        return answers[0]

    def changed(self, asker: str, node: str, *, forgotten: bool) -> Answer:
        """Forget a node, or remember it, as soon as the log is settled."""
        for count in range(100):
            wanted = ForgetNode(
                command_id=CommandId(f"f{node}{forgotten}{count}"),
                node=NodeId(node),
                forgotten=forgotten,
            )
            answer = self.ask(asker, wanted)
            if isinstance(answer, Acknowledged) or answer.refusal.reason != "pending":
                return answer
            self.reactor.turn(0.05)
        raise AssertionError("never settled")

    def place(self, name: str) -> None:
        """Have an instance in the state, as a placement would."""
        holder = self.holder()
        assert holder is not None
        shard = Shard(rank=0, node=NodeId(holder), first_layer=0, last_layer=1, bytes_reserved=1)
        instance = Instance(
            instance=InstanceId(name), model=ModelId("m"), shards=(shard,), context_tokens=8,
            keep_alive_s=-1.0,
        )  # fmt: skip
        master = self.masters[holder]
        draft = LogDraft(
            master.candidate.state, master.candidate.election.counter, NodeId(holder), 0.0
        )
        draft.add(InstancePlaced(instance=instance))
        master.shell.append(draft)
        self.until(self.agree, "the placement known to all")

    def on_disk(self, node: str) -> ClusterState:
        journal = Journal(self.folder / node / "journal", self.log, low_disk_bytes=0)
        state, events = journal.open()
        journal.close()
        for event in events:
            state = apply(state, event)
        return state

    def close(self) -> None:
        for node in list(self.masters):
            self.stop(node)
        for worker in self.workers.values():
            worker.close()
        self.switchboard.close()
        self.reactor.close()


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/tmp") as runtime:
        town = Town(tmp_path, runtime)
        try:
            yield town
        finally:
            town.close()


def keep(name: str, seconds: float) -> KeepAlive:
    command_id = CommandId(f"{name}-{seconds:g}")
    return KeepAlive(command_id=command_id, instance=InstanceId("i1"), keep_alive_s=seconds)


def test_a_majority_of_voters_gives_the_term_and_has_what_it_acknowledges(town: Town) -> None:
    town.voters = (NodeId("a"), NodeId("b"), NodeId("c"))
    for node in ("a", "b", "c"):
        town.start(node)
    took_s = town.until(town.agree, "one holder known to all")
    print(f"formed {took_s:.2f} s after the last start")
    town.place("i1")
    answer = town.ask("b", keep("k", 7.0))
    assert isinstance(answer, Acknowledged) and answer.durability == "majority"
    town.until(town.agree, "the change known to all")
    old = town.holder()
    assert old is not None
    voted = {node: read_term(town.folder / node / "term").voted_for for node in "abc"}
    assert list(voted.values()).count(NodeId(old)) >= 2
    town.stop(old)
    took_s = town.until(lambda: town.holder() is not None, "another holder")
    print(f"another holder after {took_s:.2f} s")
    assert took_s < 3 * FAILOVER_S
    town.until(town.agree, "the new term known to all")
    survivor = town.holder()
    assert survivor is not None
    assert town.masters[survivor].candidate.state.instances["i1"].keep_alive_s == 7.0
    again = town.ask(survivor, keep("k", 7.0))
    assert isinstance(again, Acknowledged)
    assert (again.index, again.durability) == (answer.index, "majority"), "a repeat, as at first"


def test_without_a_majority_changes_are_refused_with_the_way_out(town: Town) -> None:
    town.voters = (NodeId("a"), NodeId("b"), NodeId("c"))
    for node in ("a", "b"):
        town.start(node)
    town.until(town.agree, "two of three")
    town.place("i1")
    gone = next(node for node in "ab" if node != town.holder())
    left = town.holder()
    town.stop(gone)
    assert left is not None
    town.until(lambda: not town.masters[left].candidate.holding, "it steps down")
    answer = town.ask(left, keep("k", 7.0))
    assert isinstance(answer, CommandRefused)
    assert answer.refusal.reason == "no_majority"
    assert "1 of 3 voters" in answer.refusal.message and gone in answer.refusal.message
    assert town.workers[left].state.instances["i1"].status == "placed", "what is stays known"
    town.start(gone)
    town.until(town.agree, "two of three again")
    done = town.ask(left, keep("k", 7.0))
    assert isinstance(done, Acknowledged) and done.durability == "majority"


def test_a_forgotten_node_leaves_the_voter_count_and_comes_back_into_it(town: Town) -> None:
    town.voters = (NodeId("a"), NodeId("b"), NodeId("c"), NodeId("d"))
    for node in "abcd":
        town.start(node)
    town.until(town.agree, "one holder known to all")
    town.place("i1")
    holder = town.holder()
    assert holder is not None
    gone, other, third = (node for node in "abcd" if node != holder)
    town.stop(gone)
    answer = town.changed(holder, gone, forgotten=True)
    assert isinstance(answer, Acknowledged) and answer.durability == "majority"
    electors = frozenset(NodeId(node) for node in (holder, other, third))

    def counted() -> list[frozenset[NodeId]]:
        return [m.candidate.election.electors for m in town.masters.values()]

    town.until(lambda: all(one == electors for one in counted()), "all count three")
    town.stop(third)
    town.until(lambda: town.holder() is not None, "two of three hold the term")
    assert isinstance(town.ask(holder, keep("k", 7.0)), Acknowledged)
    town.stop(other)
    town.until(lambda: not town.masters[holder].candidate.holding, "one of three does not")
    refused = town.ask(holder, keep("k", 8.0))
    assert isinstance(refused, CommandRefused) and "1 of 3 voters" in refused.refusal.message
    town.stop(holder)
    for node in (holder, other):
        town.start(node)
        election = town.masters[node].candidate.election
        assert election.electors == electors, "the journal says so after a restart, too"
    town.until(lambda: town.holder() is not None, "two of three again")
    refused = town.changed(str(town.holder()), gone, forgotten=False)
    assert isinstance(refused, CommandRefused) and "2 of 4 voters" in refused.refusal.message
    town.start(third)
    town.until(lambda: town.holder() is not None and town.agree(), "three of three")
    back = town.changed(str(town.holder()), gone, forgotten=False)
    assert isinstance(back, Acknowledged) and back.durability == "majority"
    assert len(town.masters[str(town.holder())].candidate.election.electors) == 4


def test_of_two_either_may_go_and_what_was_replicated_is_there(town: Town) -> None:
    town.start("a")
    town.until(lambda: town.holder() == "a", "alone it holds at once", within_s=LAPSE_S)
    town.start("b")
    town.until(town.agree, "both agree")
    town.place("i1")
    answer = town.ask("b", keep("k", 7.0))
    assert isinstance(answer, Acknowledged) and answer.durability == "replicated"
    first = town.holder()
    assert first is not None
    second = "b" if first == "a" else "a"
    town.stop(first)
    town.until(lambda: town.holder() == second, "the survivor takes over")
    town.until(lambda: town.workers[second].mirror.holder == second, "and is known")
    alone = town.ask(second, keep("k", 8.0))
    assert isinstance(alone, Acknowledged) and alone.durability == "local"
    town.stop(second)
    for node in (first, second):
        assert town.on_disk(node).commands["k-7"] == (answer.index, "i1")
    for node in (second, first):
        town.start(node)
    town.until(town.agree, "both are back")
    state = town.masters[first].candidate.state
    assert {"k-7", "k-8"} <= set(state.commands)
    assert state.instances["i1"].keep_alive_s == 8.0


def test_a_change_of_holder_restarts_nothing_that_runs(town: Town) -> None:
    for node in ("a", "b"):
        town.start(node)
    town.until(town.agree, "both agree")
    town.place("i1")
    ready = RunnerReady(
        instance=InstanceId("i1"), generation=1, rank=0, node=NodeId("a"), process="runner:00",
        pid=1, addresses=("ipc://x",),
    )  # fmt: skip
    town.workers["a"].tell(ready)
    town.until(lambda: town.workers["b"].state.instances["i1"].status == "ready", "ready")
    old = town.holder()
    assert old is not None
    before = town.workers["b"].state.instances
    town.stop(old)
    town.until(town.agree, "the other holds")
    assert town.workers["b"].state.instances == before
    town.start(old)
    town.until(town.agree, "it is back")
    assert town.workers["b"].state.instances == before


def test_a_joiner_begins_with_a_snapshot_and_goes_on_from_its_own_journal(town: Town) -> None:
    town.start("a")
    town.until(town.agree, "alone")
    for number in range(30):
        town.workers["a"].tell(NodeJoined(node=NodeId("x"), name=str(number)))
    town.until(town.agree, "thirty facts")
    joiner = town.start("b")
    town.until(town.agree, "it has joined")
    history = joiner.candidate.log.history
    assert len(history.events) < 10, "no event from before it joined was replayed"
    town.stop("b")
    town.workers["a"].tell(NodeJoined(node=NodeId("x"), name="while it was away"))
    town.until(lambda: not town.workers["a"].outbox.waiting, "told")
    again = town.start("b")
    first = again.candidate.log.history.first
    town.until(town.agree, "it is back")
    assert again.candidate.log.history.first == first, "the tail was enough"
