"""Talks to the leader and the workers: splits a model over nodes before it is pulled, so that each
node downloads only its own layers.

The leader divides the layers as for a pipeline over exactly these nodes, by their memory and speed,
unless the client gives the numbers of layers. The bytes are estimates, because only file sizes are
known: layers count as equal. Each node checks its disk again, with the exact bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from bus.client import BusClient
from bus.process.identity import new_name
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.errors import BadRequest, OwnerSilent, Refusal
from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.commands import CommandRefused, PlaceModel, SupposedModel
from bus.wire.messages.readings import NodeReading, PullReading, PullState
from bus.wire.messages.weights import DISK_MARGIN_BYTES
from gateway.control.pulling.fitting import Fitting, HeldPull
from gateway.control.pulling.names import PullTarget
from gateway.control.pulling.workers import Workers
from gateway.view.readings import ClusterReadings

BEGUN_S = 20.0
"""Time for a node to record its pull."""


@dataclass(frozen=True, slots=True)
class SplitStage:
    """A node and its layers [first, last). `fetch_bytes`: about how much it downloads.
    `missing_bytes`: how much space its disk lacks."""

    node: NodeId
    first: int
    last: int
    fetch_bytes: int
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The stages of a split, in the order of the layers. `state` has the commit that all nodes
    pull."""

    state: PullState
    card: ModelCard
    stages: tuple[SplitStage, ...]


class Splitting:
    """Plans and begins pulls of a model by layers."""

    def __init__(self, bus: BusClient, readings: ClusterReadings) -> None:
        self._bus = bus
        self._readings = readings
        self._fitting = Fitting(bus, readings)
        self._workers = Workers(bus, readings)

    async def plan(
        self, target: PullTarget, counts: Mapping[NodeId, int | None]
    ) -> SplitPlan | Refusal | PullState:
        """Return the split of a model over the nodes of `counts`. These are numbers of layers, in
        the order of the layers; or all None, so that the leader chooses numbers and order. Return a
        refusal if the model cannot be split so, or the failed state of the pull that was to deliver
        the model card. Raises OwnerSilent, BadRequest."""
        held = await self._fitting.forecast(next(iter(counts)), target)
        if held.state.phase == "failed":
            return held.state
        card = _card_of(held)
        if isinstance(card, Refusal):
            return card
        given = [count for count in counts.values() if count is not None]
        if not given:
            bounds = await self._divided(held.state, card, list(counts))
        elif sum(given) != card.layers or min(given) < 1:
            raise BadRequest(
                f"{sum(given)} layers are assigned; {card.model} has {card.layers}, and each node "
                "needs at least one",
                field="split",
            )
        else:
            ends = list(accumulate(given, initial=0))
            bounds = dict(zip(counts, pairwise(ends), strict=True))
        if isinstance(bounds, Refusal):
            return bounds
        stages = tuple(self._stage(held.state, card, node, *span) for node, span in bounds.items())
        return SplitPlan(held.state, card, stages)

    async def begin(self, plan: SplitPlan) -> dict[NodeId, str]:
        """Have each node pull its layers in the background. Return why a node did not begin, by
        node; empty texts for the others."""
        stages = plan.stages
        results = await asyncio.gather(*(self._begin(plan, stage) for stage in stages))
        return {stage.node: why for stage, why in zip(stages, results, strict=True)}

    async def _begin(self, plan: SplitPlan, stage: SplitStage) -> str:
        target = PullTarget(plan.state.model, plan.state.revision)
        span = (stage.first, stage.last)
        states = self._workers.pull(stage.node, target, background=True, layers=span)
        try:
            async with asyncio.timeout(BEGUN_S), contextlib.aclosing(states):
                async for state in states:
                    if state.phase == "failed":
                        return state.message
                    if state.background or state.phase == "done":
                        return ""
        except TimeoutError:
            return f"the node did not record the pull within {BEGUN_S:g} s"
        except OwnerSilent as silent:
            return str(silent)
        return "the pull ended without a reason"

    async def _divided(
        self, state: PullState, card: ModelCard, nodes: Sequence[NodeId]
    ) -> dict[NodeId, tuple[int, int]] | Refusal:
        """Return the layers of each node, as the leader would place the model."""
        others = {node.node for node in self._cards()} - set(nodes)
        command = PlaceModel(
            command_id=CommandId(new_name("cmd")),
            model=state.model,
            if_absent=False,
            dry_run=True,
            previews=True,
            min_nodes=len(nodes),
            sharding="pipeline",
            excluded_nodes=tuple(sorted(others)),
            supposed=SupposedModel(node=nodes[0], card=card, by_layers=True),
        )
        answer = await self._fitting.ask_leader(command)
        if isinstance(answer, CommandRefused):
            return answer.refusal
        chosen, refusal = (answer.plan or {}).get("chosen"), (answer.plan or {}).get("refusal")
        if chosen is None:
            why = refusal or {"reason": "pending", "message": "the leader sent no placement"}
            return Refusal.model_validate(why)
        ranks = sorted(chosen["ranks"], key=lambda rank: rank["first_layer"])
        return {NodeId(rank["node"]): (rank["first_layer"], rank["last_layer"]) for rank in ranks}

    def _stage(
        self, state: PullState, card: ModelCard, node: NodeId, first: int, last: int
    ) -> SplitStage:
        now = self._bus.reactor.now()
        share = card.size_bytes * (last - first) // card.layers
        parts = [p for c in self._cards() if c.node == node for p in c.parts]
        have = sum(part.have_bytes for part in parts if part.model == card.model)
        lacking = max(0, share - have)
        readings = self._readings.fresh(NodeReading, now)
        free = next((r.disk_free_bytes for r in readings if r.node == node), None)
        begun = any(
            pull.model == state.model
            for reading in self._readings.fresh(PullReading, now)
            if reading.node == node
            for pull in reading.pulls
            if pull.background
        )
        missing = 0 if free is None or begun else max(0, lacking + DISK_MARGIN_BYTES - free)
        return SplitStage(node, first, last, lacking, missing)

    def _cards(self) -> list[NodeCard]:
        return self._readings.cards(self._bus.reactor.now())


def _card_of(held: HeldPull) -> ModelCard | Refusal:
    """Return the card of a model that can be pulled by layers, or why it cannot."""
    state = held.state
    card = None if state.forecast is None else state.forecast.card
    if state.sources:
        text = (
            f"a node of the cluster has all of {state.model}; other nodes copy only their layers "
            "from there when the model is loaded (`shoal place`)"
        )
        return Refusal(reason="conflict", message=text)
    if state.phase != "listing":
        text = f"{state.model} is already on that node, or being pulled there; see `shoal pulls`"
        return Refusal(reason="conflict", message=text)
    if card is None:
        why = "" if state.forecast is None else state.forecast.why
        text = f"the layers of {state.model} are unknown: {why}"
        return Refusal(reason="unsupported", message=text)
    if not card.fetched_in_parts:
        text = (
            f"shoal cannot load models of the family {card.family} from only some of their layers; "
            f"pull all of {state.model}"
        )
        return Refusal(reason="unsupported", message=text)
    return card
