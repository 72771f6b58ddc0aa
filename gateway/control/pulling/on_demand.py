"""Talks to the workers: pulls models that requests wait for and that are on no disk.

Each HTTP process follows at most one pull of each model. This node pulls, unless another node is
already pulling the model. When no client waits for the model any more, the process stops following
the pull. A failed pull is remembered until then, and the next request restarts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Collection, Sequence

from bus.client import BusClient
from bus.wire.errors import OwnerSilent
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullReading, PullState
from gateway.control.pulling.fitting import Fitting
from gateway.control.pulling.names import PullTarget, demanded_repository
from gateway.view.readings import ClusterReadings

LISTED_S = 15.0
"""Time for a pulled model to appear in its node's card."""


class PullsOnDemand:
    """The pulls that requests of this process wait for. Only models that match the patterns of the
    setting `pull_on_demand` are pulled."""

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
        """Return the models that requests wait for."""
        return frozenset(self._tasks)

    def allows(self, model: ModelId) -> bool:
        """Return whether the model matches a pattern of `pull_on_demand`. A model that is deleted
        while a request waits for it is pulled again only if it matches."""
        return demanded_repository(model, {}, self._patterns) is not None

    def want(self, model: ModelId) -> None:
        """Start pulling a model, unless a pull of it is running."""
        state = self._states.get(model)
        if model not in self._tasks or (state is not None and state.phase == "failed"):
            self._states.pop(model, None)
            self._tasks[model] = asyncio.ensure_future(self._pull(model))

    def keep(self, wanted: Collection[ModelId]) -> None:
        """Stop following all pulls except those of the `wanted` models."""
        for model in self._tasks.keys() - set(wanted):
            self._tasks.pop(model).cancel()
            self._states.pop(model, None)

    def state(self, model: ModelId) -> PullState | None:
        """Return the state of a model's pull; None before the first report."""
        return self._states.get(model)

    async def _pull(self, model: ModelId) -> None:
        node, target = self._node_for(model), PullTarget(model)
        try:
            pulled = self._fitting.pull(node, target, anyway=False)
            async with contextlib.aclosing(pulled) as states:
                async for state in states:
                    self._states[model] = state
            # waiting requests see it listed meanwhile, and `keep` cancels this task
            await asyncio.sleep(LISTED_S)
            text = f"{node} pulled {model} but does not list it; see `shoal ls`"
        except OwnerSilent as silent:
            text = str(silent)
        if (last := self._states.get(model)) is None or last.phase != "failed":
            self._states[model] = PullState(
                model=model, phase="failed", reason="broken", message=text
            )

    def _node_for(self, model: ModelId) -> NodeId:
        """Return the node that is already pulling the model, else this node."""
        readings = self._readings.fresh(PullReading, self._bus.reactor.now())
        ended = ("done", "failed")
        at_it = (
            reading.node
            for reading in readings
            if any(pull.model == model and pull.phase not in ended for pull in reading.pulls)
        )
        return next(at_it, self._bus.speaker.node)


def pulling_text(model: ModelId, state: PullState | None, *, position: int) -> str:
    """Return a progress line for a client that waits for a pull."""
    place = f", {position} ahead of you" if position else ""
    if state is None or not state.total_bytes:
        note = f" ({state.note})" if state is not None and state.note else ""
        return f"pulling {model}{note}{place}"
    percent = math.floor(100 * state.done_bytes / state.total_bytes)
    done, total = state.done_bytes / 1e6, state.total_bytes / 1e6
    rate = f", {state.bytes_per_s / 1e6:.0f} MB/s" if state.bytes_per_s else ""
    return f"pulling {percent} % ({done:.0f} of {total:.0f} MB{rate}) {model}{place}"
