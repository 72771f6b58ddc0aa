"""How a model is split over nodes before it is pulled by layers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.wire.cards import ModelCard, PartialModel
from bus.wire.errors import BadRequest, Refusal
from bus.wire.ids import CommandId, ModelId, NodeId
from bus.wire.messages.commands import Acknowledged, CommandRefused, PlaceModel
from bus.wire.messages.readings import NodeReading, PullForecast, PullReading, PullState
from gateway.cluster import Cluster
from gateway.control.pulling import Fit, HeldPull, PullTarget, SplitPlan, Splitting
from gateway.dialects.faults import HttpFaultRaised
from gateway.http.resources.pulls.pull import _split_counts  # pyright: ignore[reportPrivateUsage]
from tests.harness.placement_nodes import GB, MODEL, model, node

A, B, C = (NodeId(f"n{number}") for number in (1, 2, 3))
CARD = model((GB,) * 8, fetched_in_parts=True)


class Site:
    """Three nodes with 5 GB of free disk each, a leader and a hub that say what a test wants."""

    def __init__(self, card: ModelCard | None = CARD, **state: Any) -> None:
        facts = {"phase": "listing", "revision": "abc", "total_bytes": 8 * GB, **state}
        forecast = PullForecast(card=card, why="" if card else "no config.json")
        self.state = PullState(model=MODEL, forecast=forecast, **facts)
        self.commands: list[PlaceModel] = []
        self.answer: Acknowledged | CommandRefused | None = None
        self.nodes = [node(number, disk_free_bytes=5 * GB) for number in (1, 2, 3, 4)]
        readings = SimpleNamespace(
            cards=lambda _now: [each.card for each in self.nodes],
            fresh=lambda kind, _now: {
                NodeReading: [each.reading for each in self.nodes],
                PullReading: [],
            }[kind],
        )
        bus = SimpleNamespace(reactor=SimpleNamespace(now=lambda: 0.0))
        self.splitting = Splitting(cast(Any, bus), cast(Any, readings))
        fitting = SimpleNamespace(forecast=self.forecast, ask_leader=self.ask_leader)
        vars(self.splitting)["_fitting"] = fitting

    async def forecast(self, _node: NodeId, _target: PullTarget) -> HeldPull:
        """Say what the hub would send."""
        return HeldPull(self.state, Fit("now"))

    async def ask_leader(self, command: PlaceModel) -> Acknowledged | CommandRefused:
        """Note the question; answer as the test wants."""
        self.commands.append(command)
        assert self.answer is not None
        return self.answer

    def plan(self, **counts: int | None) -> Any:
        """Plan the split over these nodes."""
        nodes = {NodeId(name): count for name, count in counts.items()}
        return asyncio.run(self.splitting.plan(PullTarget(MODEL), nodes))


def chosen(*ranks: tuple[str, int, int]) -> Acknowledged:
    rows = [{"node": name, "first_layer": a, "last_layer": b} for name, a, b in ranks]
    return Acknowledged(
        command_id=CommandId("c"),
        term=1,
        index=1,
        durability="local",
        plan={"chosen": {"ranks": rows}, "refusal": None},
    )


def test_the_leader_divides_the_layers_over_exactly_these_nodes() -> None:
    site = Site()
    site.answer = chosen(("n1", 5, 8), ("n3", 0, 2), ("n2", 2, 5))
    plan = site.plan(n1=None, n2=None, n3=None)
    assert isinstance(plan, SplitPlan)
    spans = [(stage.node, stage.first, stage.last) for stage in plan.stages]
    assert spans == [(C, 0, 2), (B, 2, 5), (A, 5, 8)]
    assert [stage.fetch_bytes for stage in plan.stages] == [2 * GB, 3 * GB, 3 * GB]
    (command,) = site.commands
    assert command.dry_run and command.previews and command.sharding == "pipeline"
    assert (command.min_nodes, command.excluded_nodes) == (3, (NodeId("n4"),))
    assert command.supposed is not None and command.supposed.by_layers


def test_numbers_of_layers_are_obeyed_and_the_leader_is_not_asked() -> None:
    plan = Site().plan(n2=6, n1=2)
    assert [(stage.node, stage.first, stage.last) for stage in plan.stages] == [
        (B, 0, 6),
        (A, 6, 8),
    ]
    margin = 1 << 30
    assert [stage.missing_bytes for stage in plan.stages] == [6 * GB + margin - 5 * GB, 0]
    for counts in ({"n1": 6, "n2": 3}, {"n1": 8, "n2": 0}):
        with pytest.raises(BadRequest, match="m has 8, and each node needs at least one"):
            Site().plan(**counts)


def test_layers_that_are_on_the_disk_need_no_room() -> None:
    site = Site()
    part = PartialModel(model=MODEL, layers=((0, 6),), have_bytes=6 * GB, size_bytes=8 * GB)
    site.nodes[0] = node(1, disk_free_bytes=2 * GB, parts=(part,))
    plan = site.plan(n1=6, n2=2)
    assert [stage.missing_bytes for stage in plan.stages] == [0, 0]
    assert plan.stages[0].fetch_bytes == 0


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (Site(sources=(C,)), "a node of the cluster has all of m"),
        (Site(phase="done"), "already on that node"),
        (Site(card=None), "the layers of m are unknown: no config.json"),
        (Site(card=model()), "models of the family qwen3 from only some"),
    ],
)
def test_a_model_that_cannot_be_split_says_why(site: Site, words: str) -> None:
    refusal = site.plan(n1=None, n2=None)
    assert isinstance(refusal, Refusal) and words in refusal.message and not site.commands


def test_the_leaders_refusal_and_the_hubs_failure_are_passed_on() -> None:
    site = Site()
    why = Refusal(reason="no_capacity", message="4 GB are missing")
    site.answer = CommandRefused(command_id=CommandId("c"), refusal=why)
    assert site.plan(n1=None, n2=None) == why
    site.answer = Acknowledged(
        command_id=CommandId("c"), term=1, index=1, durability="local",
        plan={"chosen": None, "refusal": why.model_dump(mode="json")},
    )  # fmt: skip
    assert site.plan(n1=None, n2=None) == why
    failed = Site(phase="failed", reason="gated", message="accept its license")
    assert failed.plan(n1=None, n2=None) == failed.state


def test_the_nodes_of_a_split_are_named_once_and_all_with_numbers_or_none() -> None:
    cards = [node(number).card for number in (1, 2, 3)]
    cluster = SimpleNamespace(
        readings=SimpleNamespace(cards=lambda _now: cards),
        reactor=SimpleNamespace(now=lambda: 0.0),
    )

    def counts(*entries: str) -> dict[NodeId, int | None]:
        return _split_counts(cast(Cluster, cluster), list(entries))

    assert counts("box2", "n1") == {B: None, A: None}
    assert list(counts("n3=4", "box1 = 2").items()) == [(C, 4), (A, 2)]
    for entries, words in (
        (("n1",), "at least two nodes"),
        (("n1", "box1"), "is named twice"),
        (("n1=2", "n2"), "of each node, or of none"),
        (("n1=2", "n2=x"), "NODE=LAYERS"),
        (("n1=2", "n2="), "NODE=LAYERS"),
    ):
        with pytest.raises(BadRequest, match=words) as error:
            counts(*entries)
        assert error.value.field == "split"
    with pytest.raises(HttpFaultRaised):
        counts("n1", "nowhere")
    assert ModelId(MODEL) == CARD.model
