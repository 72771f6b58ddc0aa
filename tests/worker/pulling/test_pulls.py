"""The pulls of one worker where only copies from other nodes are wanted: no hub is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.client import BusClient
from bus.wire.cards import ModelCard
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullReading, PullState
from bus.wire.messages.weights import PullAsked
from tests.recorded.specimens import least
from worker.models.local_models import LocalModels
from worker.pulling.active import pulls as pulling
from worker.pulling.active.pull import AT_ONCE, GIVER_S
from worker.pulling.active.pulls import Pulls
from worker.pulling.order import PullSettings
from worker.transfer.downloads import Downloads

ME = NodeId("me")
M = ModelId("m")
SETTINGS = PullSettings(Path("/nowhere"), record=Path("/nowhere/pulls"))


class Quiet:
    """A log that no test reads."""

    def info(self, *_: Any, **__: Any) -> None:
        """Log nothing."""

    warning = info


class Bus:
    """The bus as one worker has it: what it was told, and what it published last."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log = Quiet()
        self.reactor = SimpleNamespace(now=lambda: self.now)
        self.speaker = SimpleNamespace(node=ME)
        self.states: dict[ModelId, PullState] = {}
        self.heard: dict[str, Callable[[str, Any], None]] = {}

    def hear(self, topic: str, heard: Callable[[str, Any], None]) -> None:
        """Note who hears."""
        self.heard[topic] = heard

    def publish(self, _topic: str, reading: PullReading) -> None:
        """Note what is told."""
        self.states = {one.model: one for one in reading.pulls}

    def ask(self, question: str, model: ModelId = M, **fields: Any) -> None:
        """Have a client ask."""
        asked = PullAsked(question=question, asker=ME, model=model, **fields)
        self.heard[f"pull.asked.{ME}"]("", SimpleNamespace(message=asked))


@dataclass
class Fetches:
    """This node's fetches: who gives which model, and what came of each that is held."""

    gives: set[ModelId] = field(default_factory=set[ModelId])
    held: dict[ModelId, Refusal | None] = field(default_factory=dict[ModelId, Refusal | None])
    addresses: tuple[str, ...] = ("tcp://127.0.0.1:1",)

    def elsewhere(self, _now: float) -> Any:
        """Return what is known of other nodes."""
        return SimpleNamespace(has_heard=True, cards={}, fetches=dict(self.held))

    def givers(self, model: ModelId, _now: float) -> tuple[NodeId, ...]:
        """Return who gives it."""
        return (NodeId("other"),) if model in self.gives else ()

    def hold(self, model: ModelId, _now: float) -> None:
        """Begin."""
        self.held.setdefault(model, None)

    def let_go(self, model: ModelId) -> None:
        """End."""
        self.held.pop(model, None)

    def reading_of(self, _model: ModelId) -> None:
        """Return nothing: how far it is is another's matter."""


@dataclass
class Bench:
    """A worker's pulls over what they talk to."""

    bus: Bus
    fetches: Fetches
    here: Any
    pulls: Pulls

    def tick(self, seconds: float = 0.0) -> None:
        """Let time go by, the questions repeated."""
        self.bus.now += seconds
        self.pulls.tick(self.bus.now)

    def phase(self, model: ModelId = M) -> str:
        """Return how far a pull is."""
        return self.bus.states[model].phase


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    def process(order: Any) -> Any:
        raise AssertionError(f"a hub is asked for {order.model}")

    monkeypatch.setattr(pulling, "PullProcess", process)
    bus, fetches, here = Bus(), Fetches(), SimpleNamespace(cards={}, passed_over=())
    made = Pulls(cast(BusClient, bus), SETTINGS, cast(Downloads, fetches), cast(LocalModels, here))
    return Bench(bus, fetches, here, made)


def test_a_copy_waits_a_while_for_a_node_that_gives_it_and_asks_no_hub(bench: Bench) -> None:
    bench.bus.ask("q", copies=True)
    bench.tick()
    assert bench.phase() == "waiting"
    bench.tick(GIVER_S - 1)
    bench.bus.ask("q", copies=True)
    assert bench.phase() == "waiting"
    bench.tick(2)
    state = bench.bus.states[M]
    assert (state.phase, state.reason) == ("failed", "no_giver")
    assert "no other connected node offers it" in state.message


def test_a_copy_that_comes_is_done_and_one_that_fails_says_why(bench: Bench) -> None:
    bench.fetches.gives |= {M, ModelId("o/n")}
    for question, model in (("q", M), ("r", ModelId("o/n"))):
        bench.bus.ask(question, model, copies=True)
    bench.tick()
    assert bench.phase() == bench.phase(ModelId("o/n")) == "copying"
    bench.here.cards[M] = least(ModelCard)
    refusal = Refusal(reason="weights_unavailable", message="all are silent")
    bench.fetches.held[ModelId("o/n")] = refusal
    bench.tick()
    bench.tick()
    assert bench.phase() == "done"
    state = bench.bus.states[ModelId("o/n")]
    assert (state.phase, state.reason) == ("failed", "no_giver") and "silent" in state.message


def test_a_node_makes_a_few_copies_at_a_time(bench: Bench) -> None:
    models = [ModelId(f"m{number}") for number in range(AT_ONCE + 2)]
    bench.fetches.gives |= set(models)
    for model in models:
        bench.bus.ask(f"q{model}", model, copies=True)
    bench.tick()
    assert [bench.phase(one) for one in models].count("copying") == AT_ONCE
    bench.here.cards[models[0]] = least(ModelCard)
    bench.tick()
    bench.tick()
    assert bench.phase(models[AT_ONCE]) == "copying" and bench.phase(models[-1]) == "waiting"


def test_a_hub_may_be_asked_for_as_long_as_one_who_waits_wants_that(bench: Bench) -> None:
    name = ModelId("o/n")
    bench.bus.ask("copy", name, copies=True)
    bench.bus.ask("pull", name)
    bench.bus.ask("pull", name, leaves=True)
    bench.tick(1)
    assert bench.phase(name) == "waiting"
    bench.bus.ask("pull", name)
    with pytest.raises(AssertionError, match="a hub is asked for o/n"):
        bench.tick()


def test_only_a_copy_may_have_a_name_that_is_no_repositorys(bench: Bench) -> None:
    bench.bus.ask("pull", M)
    bench.tick()
    assert bench.bus.states[M].reason == "bad_name"
    bench.bus.ask("copy", copies=True)
    bench.tick()
    assert len(bench.bus.states) == 1 and bench.phase() == "waiting"
    bench.bus.ask("again", M)
    bench.tick()
    assert bench.bus.states[M].reason == "bad_name", "it joins no copy"
