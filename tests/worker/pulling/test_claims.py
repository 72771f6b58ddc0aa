"""Several nodes are asked for one model at once: the pulls of each over a network that delays and
loses readings. One asks the hub, the others copy; whatever becomes of it, all get the model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.client import BusClient
from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullForecast, PullReading, PullState
from bus.wire.messages.weights import PullAsked
from tests.recorded.specimens import least
from worker.models.local_models import LocalModels
from worker.pulling.active import pulls as pulling
from worker.pulling.active.pulls import Pulls
from worker.pulling.claims import OFFERED_S, SETTLE_S, SILENT_S, STALLED_S
from worker.pulling.order import PullOrder, PullSettings
from worker.transfer.downloads import Downloads

M = ModelId("o/m")
TICK_S, LOOK_S, FETCH_S, COPY_S = 0.25, 0.5, 8.0, 2.0
SEEDS = st.integers(0, 1 << 30)


class Quiet:
    """A log that no test reads."""

    def info(self, *_: Any, **__: Any) -> None:
        """Log nothing."""

    warning = info


@dataclass
class Process:
    """In place of a process that pulls: it looks, holds if it is to, and fetches for `FETCH_S`."""

    node: SimNode
    order: PullOrder
    began_at: float
    went_at: float | None = None
    stopped: bool = False
    ended: bool = False

    @property
    def fetches(self) -> bool:
        """Return whether it asks the hub for weights."""
        return self.went_at is not None and not self.stopped and not self.ended

    @property
    def state(self) -> PullState | None:
        """Return how far it is."""
        now, said = self.node.net.now, PullState(model=self.order.model, phase="listing")
        if now - self.began_at < LOOK_S:
            return said
        if self.went_at is None:
            return said.model_copy(update={"forecast": PullForecast()})
        if self.node.failure and self.fetches:
            self.ended = True
        if self.ended:
            failed = {"phase": "failed", "reason": "unauthorized", "message": self.node.failure}
            return said.model_copy(update=failed)
        moved_s = (self.node.frozen_at or now) - self.went_at
        if moved_s >= FETCH_S:
            return said.model_copy(update={"phase": "done"})
        figures = {"phase": "fetching", "done_bytes": int(moved_s * 1000), "total_bytes": 8000}
        return said.model_copy(update=figures)

    def go(self) -> None:
        """Go on."""
        self.went_at = self.node.net.now

    def stop(self) -> None:
        """End."""
        self.stopped = True


@dataclass
class Fetches:
    """A node's fetches from others, by the cards that came."""

    node: SimNode
    held_at: float | None = None
    addresses: tuple[str, ...] = ("tcp://127.0.0.1:1",)
    knows_givers: bool = True

    def elsewhere(self, _now: float) -> Any:
        """Return what is known of other nodes."""
        cards = {
            one.name: SimpleNamespace(name=f"node {one.name}")
            for one in self.node.net.nodes
            if one is not self.node
        }
        return SimpleNamespace(has_heard=True, cards=cards, fetches={})

    def givers(self, _model: ModelId, _now: float) -> tuple[NodeId, ...]:
        """Return who gives it."""
        return tuple(sorted(self.node.cards)) if self.knows_givers else ()

    def hold(self, _model: ModelId, now: float) -> None:
        """Begin."""
        self.held_at = now if self.held_at is None else self.held_at

    def let_go(self, _model: ModelId) -> None:
        """End."""
        self.held_at = None

    def reading_of(self, _model: ModelId) -> None:
        """Return nothing: how far it is is another's matter."""


class SimNode:
    """A node: its pulls over what they talk to; it is its own bus."""

    def __init__(self, net: Net, name: str, skew_s: float, **more: Any) -> None:
        self.net, self.name, self.skew_s = net, NodeId(name), skew_s
        self.log, self.speaker = Quiet(), SimpleNamespace(node=self.name)
        self.reactor = SimpleNamespace(now=lambda: net.now)
        self.here: Any = SimpleNamespace(cards={}, passed_over=())
        self.hears: dict[str, Callable[[str, Any], None]] = {}
        self.cards: set[NodeId] = set()
        self.processes: list[Process] = []
        self.questions: dict[str, tuple[bool, str]] = {}
        self.alive, self.told = True, PullState(model=M, phase="waiting")
        self.notes: list[str] = []
        self.failure, self.frozen_at = "", cast("float | None", None)
        self.fetches = Fetches(self)
        found = PullSettings(Path(name), Path(name, "pulls"), **more)
        downloads = cast(Downloads, self.fetches)
        self.pulls = Pulls(cast(BusClient, self), found, downloads, cast(LocalModels, self.here))

    def hear(self, topic: str, heard: Callable[[str, Any], None]) -> None:
        """Note who hears."""
        self.hears[topic] = heard

    def publish(self, _topic: str, reading: PullReading) -> None:
        """Have others hear it, in a while."""
        for one in reading.pulls:
            self.told = one
            self.notes += [one.note] if one.note not in self.notes else []
        self.net.send(self, "reading.pulls", reading)

    def ask(self, *, holds: bool = False, revision: str = "") -> None:
        """Have a client ask from now on."""
        self.questions[f"{self.name}{len(self.questions)}"] = (holds, revision)

    def leave(self) -> None:
        """Have all who asked hang up."""
        self._say(leaves=True)
        self.questions.clear()

    def _say(self, *, leaves: bool = False) -> None:
        for question, (holds, revision) in self.questions.items():
            asked = PullAsked(
                question=question,
                asker=self.name,
                model=M,
                revision=revision,
                leaves=leaves,
                holds=holds and not self.told.forecast,
            )
            self.hears[f"pull.asked.{self.name}"]("", SimpleNamespace(message=asked))

    def tick(self) -> None:
        """Do what a worker does each quarter of a second."""
        if not self.alive:
            return
        held_at = self.fetches.held_at
        came = self.pulls.came()
        if came or (held_at is not None and self.net.now - held_at >= COPY_S):
            self.here.cards[M] = least(ModelCard)
            self.net.send(self, "card", None)
        self.pulls.looked(came, self.net.now)
        self._say()
        self.pulls.tick(self.net.now)

    @property
    def fetching(self) -> bool:
        """Return whether it asks the hub for weights."""
        return self.alive and any(one.fetches for one in self.processes) and not self.here.cards


class Net:
    """Nodes, and what is on its way between them: in order from each to each, for up to `delay_s`,
    unless it is lost."""

    def __init__(
        self, count: int, seed: int = 0, *, delay_s: float = 0.0, loss: float = 0.0
    ) -> None:
        self.now, self.chance = 100.0, random.Random(seed)
        self.delay_s, self.loss = delay_s, loss
        self.on_way: list[tuple[float, SimNode, SimNode, str, Any]] = []
        self.due: dict[tuple[NodeId, NodeId], float] = {}
        self.cut: set[NodeId] = set()
        self.nodes: list[SimNode] = []
        for number in range(count):
            self.nodes.append(SimNode(self, f"n{number}", self.chance.choice((0, 5, -3600))))
        self.ticks = {one.name: self.now + self.chance.random() * TICK_S for one in self.nodes}

    def send(self, sender: SimNode, topic: str, message: Any) -> None:
        """Put it on its way to each other node. Cards are never lost: they are said again."""
        for one in self.nodes:
            if one is sender or (topic != "card" and self.chance.random() < self.loss):
                continue
            at = self.now + self.chance.random() * self.delay_s
            pair = sender.name, one.name
            self.due[pair] = at = max(at, self.due.get(pair, 0.0))
            self.on_way.append((at, sender, one, topic, message))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Let time go by; return how much did."""
        begin, end = self.now, self.now + seconds
        while self.now < end and not until():
            ticks = self.ticks.values()
            self.now = min([*ticks, *(one[0] for one in self.on_way)])
            self._deliver()
            for one in self.nodes:
                if self.ticks[one.name] <= self.now:
                    self.ticks[one.name] += TICK_S
                    pulling.wall = lambda skew_s=one.skew_s: self.now + skew_s
                    one.tick()
        return self.now - begin

    def _deliver(self) -> None:
        due = sorted((one for one in self.on_way if one[0] <= self.now), key=lambda one: one[0])
        self.on_way = [one for one in self.on_way if one[0] > self.now]
        for _, sender, one, topic, message in due:
            if {sender.name, one.name} & self.cut or not one.alive:
                continue
            if topic == "card":
                one.cards.add(sender.name)
            else:
                one.hears[topic]("", SimpleNamespace(message=message))

    @property
    def fetching(self) -> list[SimNode]:
        """Return the nodes that ask the hub for weights."""
        return [one for one in self.nodes if one.fetching]

    def fetched(self) -> list[NodeId]:
        """Return the nodes that ever asked the hub for weights."""
        return [n.name for n in self.nodes if any(p.went_at is not None for p in n.processes)]

    def all_have_it(self) -> bool:
        """Return whether all nodes that are alive have the model."""
        return all(one.here.cards for one in self.nodes if one.alive)


@pytest.fixture(autouse=True)
def hub() -> Iterator[None]:
    """Processes of ours in place of those that pull."""
    real, clock = pulling.PullProcess, pulling.wall
    pulling.PullProcess = _started  # pyright: ignore[reportAttributeAccessIssue]
    yield
    pulling.PullProcess, pulling.wall = real, clock


NETS: list[Net] = []


def _started(order: PullOrder) -> Process:
    node = next(one for one in NETS[-1].nodes if one.name == order.models)
    went_at = None if order.holds else node.net.now
    node.processes.append(Process(node, order, node.net.now, went_at))
    return node.processes[-1]


def net_of(count: int, seed: int = 0, **more: float) -> Net:
    NETS[:] = [Net(count, seed, **more)]
    return NETS[-1]


def asked_at_once(net: Net, spread_s: float = 0.0) -> None:
    """Have each node asked, one so long after the other, with and without a look before."""
    for node in net.nodes:
        node.ask(holds=net.chance.random() < 0.5)
        net.run(spread_s * net.chance.random())


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(2, 5), st.floats(0, SETTLE_S / 2), st.floats(0, 1))
def test_one_of_those_who_hear_each_other_asks_the_hub(
    seed: int, count: int, delay_s: float, spread_s: float
) -> None:
    net = net_of(count, seed, delay_s=delay_s)
    asked_at_once(net, spread_s)
    net.run(60, net.all_have_it)
    assert net.all_have_it()
    assert len(net.fetched()) == 1, net.fetched()


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(2, 5), st.floats(0, 3), st.floats(0, 0.4))
def test_whatever_is_late_or_lost_all_have_the_model_as_soon_as_alone(
    seed: int, count: int, delay_s: float, loss: float
) -> None:
    net = net_of(count, seed, delay_s=delay_s, loss=loss)
    asked_at_once(net, 1.0)
    took_s = net.run(60, net.all_have_it)
    assert net.all_have_it(), took_s


@settings(max_examples=6, deadline=None)
@given(SEEDS, st.integers(2, 4), st.floats(0, 1))
def test_of_two_that_began_one_gives_way(seed: int, count: int, delay_s: float) -> None:
    net = net_of(count, seed, delay_s=delay_s)
    net.cut = {one.name for one in net.nodes}
    asked_at_once(net)
    net.run(2)
    assert len(net.fetching) == count, "cut off, each asks the hub"
    net.cut = set()
    net.run(4)
    assert len(net.fetching) == 1
    net.run(60, net.all_have_it)
    assert net.all_have_it()


@settings(max_examples=10, deadline=None)
@given(
    SEEDS,
    st.integers(2, 4),
    st.floats(0, SETTLE_S / 2),
    st.floats(2, FETCH_S - 2),
    st.sampled_from(("dies", "fails", "leaves", "freezes", "is cut off")),
)
def test_the_next_goes_on_where_the_first_does_not(
    seed: int, count: int, delay_s: float, after_s: float, end: str
) -> None:
    net = net_of(count, seed, delay_s=delay_s)
    asked_at_once(net)
    net.run(10, lambda: bool(net.fetching))
    net.run(after_s)
    (first,) = net.fetching
    waited_s = 2.0
    if end == "dies":
        first.alive, waited_s = False, SILENT_S + 2
    elif end == "fails":
        first.failure = "the hub knows no such token"
    elif end == "leaves":
        first.leave()
    elif end == "freezes":
        first.frozen_at, waited_s = net.now, STALLED_S + 2
    else:
        net.cut, waited_s = {first.name}, SILENT_S + 2
    others = [one for one in net.nodes if one is not first]
    net.run(waited_s, lambda: any(one.fetching for one in others))
    (second,) = (one for one in others if one.fetching)
    net.run(60, lambda: all(one.here.cards for one in others))
    assert all(one.here.cards for one in others)
    fetched = {one.name for one in others if one.name in net.fetched()}
    assert fetched == {second.name}
    words = {
        "dies": f"was silent for {SILENT_S:g} s",
        "fails": "could not pull it (the hub knows no such token)",
        "leaves": "stopped its pull",
        "freezes": f"made no progress for {STALLED_S:g} s",
        "is cut off": f"was silent for {SILENT_S:g} s",
    }
    left = next(p.standing.left for p in second.pulls._board.pulls)  # pyright: ignore[reportPrivateUsage]
    assert left == f"node {first.name} {words[end]}"


def test_who_waits_is_told_for_which_node_and_how_far_that_is() -> None:
    net = net_of(2)
    asked_at_once(net)
    net.run(5)
    (first,) = net.fetching
    (other,) = (one for one in net.nodes if one is not first)
    assert other.told.note == f"node {first.name} is downloading it; this node copies it from there"
    assert other.told.phase == "waiting" and other.told.total_bytes == 8000
    assert 0 < other.told.done_bytes < 8000


def test_revisions_and_hubs_are_different_things() -> None:
    net = net_of(2)
    net.nodes[0].ask()
    net.nodes[1].ask(revision="main")
    net.run(3)
    assert len(net.fetching) == 2
    net = net_of(1)
    net.nodes.append(SimNode(net, "n1", 0.0, hub="http://mirror"))
    net.ticks[NodeId("n1")] = net.now
    asked_at_once(net)
    net.run(3)
    assert len(net.fetching) == 2


def test_a_node_that_gives_nothing_is_not_waited_for_and_waits() -> None:
    net = net_of(2)
    net.nodes[0].fetches.addresses, net.nodes[0].skew_s = (), -9.0
    asked_at_once(net)
    net.run(3)
    assert net.fetching == [net.nodes[1]]


def test_a_node_alone_asks_at_once_and_one_that_is_offline_waits_for_another() -> None:
    net = net_of(1)
    net.nodes[0].ask()
    net.run(TICK_S)
    assert net.fetching == net.nodes
    net = net_of(1)
    net.nodes.append(SimNode(net, "n1", 0.0, offline=True))
    net.ticks[NodeId("n1")] = net.now
    net.nodes[0].ask()
    net.run(2)
    net.nodes[1].ask()
    net.run(2)
    assert net.nodes[1].told.phase == "waiting"
    net.nodes[0].leave()
    net.run(1)
    assert net.nodes[1].told.reason == "offline"
    assert net.nodes[1].told.message.endswith(": node n0 stopped its pull")


def test_a_model_that_is_there_and_not_offered_is_asked_of_the_hub() -> None:
    net = net_of(2)
    net.nodes[0].ask()
    net.run(2)
    net.nodes[1].ask()
    net.nodes[1].fetches.knows_givers = False
    net.run(FETCH_S)
    assert net.nodes[0].told.phase == "done" and not net.nodes[1].fetching
    net.run(OFFERED_S + 1)
    assert net.nodes[1].fetching
