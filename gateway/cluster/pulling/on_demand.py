"""Talks to the workers: models that requests wait for and that are on no disk yet, being pulled.

One pull a model and HTTP process, by this node, or by one that is at it already; it is left when no
client waits for the model any more. What failed is kept until then, and asked for anew by the next
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Collection, Sequence

from bus.client import BusClient
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullReading, PullState
from gateway.cluster.cancels import OwnerSilent
from gateway.cluster.pulling.fitting import Fitting
from gateway.cluster.pulling.names import PullTarget, demanded_repository
from gateway.cluster.readings import ClusterReadings

LISTED_S = 15.0
"""A model that was pulled is listed within this: the node's card says it."""


class PullsOnDemand:
    """The pulls that requests of this process wait for, of what the patterns of `pull_on_demand`
    allow."""

    def __init__(
        self, bus: BusClient, readings: ClusterReadings, pull_on_demand: Sequence[str]
    ) -> None:
        self._bus = bus
        self._readings = readings
        self._patterns = pull_on_demand
        self._fitting = Fitting(bus, readings)
        self._tasks: dict[ModelId, asyncio.Task[None]] = {}
        self._states: dict[ModelId, PullState] = {}

    @property
    def models(self) -> frozenset[ModelId]:
        """Return the models that are waited for."""
        return frozenset(self._tasks)

    def allows(self, model: ModelId) -> bool:
        """Return whether a model that is on no disk may be pulled: one that was deleted while a
        request ran on it may not, unless a pattern allows it."""
        return demanded_repository(model, {}, self._patterns) is not None

    def want(self, model: ModelId) -> None:
        """Have a model pulled, unless it is already."""
        known = self._states.get(model)
        if model not in self._tasks or (known is not None and known.phase == "failed"):
            self._states.pop(model, None)
            self._tasks[model] = asyncio.ensure_future(self._pull(model))

    def keep(self, wanted: Collection[ModelId]) -> None:
        """Leave the pulls of all models but these, which are still waited for."""
        for model in self._tasks.keys() - set(wanted):
            self._tasks.pop(model).cancel()
            self._states.pop(model, None)

    def state(self, model: ModelId) -> PullState | None:
        """Return how far a model's pull is; None before anything was heard of it."""
        return self._states.get(model)

    async def _pull(self, model: ModelId) -> None:
        node, target = self._node_for(model), PullTarget(model)
        try:
            pulled = self._fitting.pull(node, target, anyway=False)
            async with contextlib.aclosing(pulled) as states:
                async for state in states:
                    self._states[model] = state
            # who waits for it sees it listed, and leaves
            await asyncio.sleep(LISTED_S)
            text = f"{node} pulled {model} but does not list it; see `shoal ls`"
        except OwnerSilent as silent:
            text = f"{silent.owner} did not answer within {silent.waited_s:g} s; see `shoal nodes`"
        if (last := self._states.get(model)) is None or last.phase != "failed":
            self._states[model] = PullState(
                model=model, phase="failed", reason="broken", message=text
            )

    def _node_for(self, model: ModelId) -> NodeId:
        """Return the node that is pulling it, else this one."""
        readings = self._readings.fresh(PullReading, self._bus.reactor.now())
        ended = ("done", "failed")
        at_it = (
            reading.node
            for reading in readings
            if any(pull.model == model and pull.phase not in ended for pull in reading.pulls)
        )
        return next(at_it, self._bus.speaker.node)


def pulling_text(model: ModelId, state: PullState | None, *, position: int) -> str:
    """Return a line for the person who waits for a model that is being pulled."""
    place = f", {position} ahead of you" if position else ""
    if state is None or not state.total_bytes:
        note = f" ({state.note})" if state is not None and state.note else ""
        return f"pulling {model}{note}{place}"
    percent = math.floor(100 * state.done_bytes / state.total_bytes)
    done, total = state.done_bytes / 1e6, state.total_bytes / 1e6
    rate = f", {state.bytes_per_s / 1e6:.0f} MB/s" if state.bytes_per_s else ""
    return f"pulling {percent} % ({done:.0f} of {total:.0f} MB{rate}) {model}{place}"
