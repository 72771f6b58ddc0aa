"""Talks to the leader and the workers: pauses a pull until it is known whether the cluster could
run the model. If no estimate is possible, the pull continues.

The leader estimates the memory as for a model on a disk. For that it needs a model card. The
pulling node makes that card from the model's configuration and file sizes. The card and the bytes
to fetch are the node's forecast.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from bus.client import BusClient
from bus.process.identity import new_name
from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.commands import (
    Acknowledged,
    CommandRefused,
    PlaceModel,
    SupposedModel,
)
from bus.wire.messages.readings import NodeReading, PullForecast, PullState
from gateway.control.pulling.fit import Fit, fit_of, refused_pull, too_late, unreckoned
from gateway.control.pulling.names import PullTarget
from gateway.control.pulling.workers import Hold, Workers
from gateway.view.readings import ClusterReadings

ANSWER_S = 6.0
"""How long to wait for the leader's answer. After each repeated question, a worker pauses a pull
for longer than this."""
FORECAST_S = 60.0
"""A dry run waits at most this long for a node's forecast, even if the hub asks to wait longer."""

UNDER_WAY = ("copying", "fetching", "checking", "publishing")


@dataclass(frozen=True, slots=True)
class HeldPull:
    """A pull that is paused before weights are downloaded: its state with the node's forecast, and
    the leader's estimate."""

    state: PullState
    fit: Fit


class Fitting:
    """Pulls models. Each pull is first checked against the cluster's memory."""

    def __init__(self, bus: BusClient, readings: ClusterReadings) -> None:
        self._bus = bus
        self._readings = readings
        self._workers = Workers(bus, readings)

    async def pull(
        self, node: NodeId, target: PullTarget, *, anyway: bool, background: bool = False
    ) -> AsyncGenerator[PullState]:
        """Have a node pull a model, and yield the state of the pull. If the model fits nowhere, the
        pull fails before weights are downloaded, unless `anyway` is set. With `background` the pull
        continues without this client once the check is done. Raises OwnerSilent."""
        hold = Hold(holds=not anyway)
        pulled = self._workers.pull(node, target, hold, background=background)
        async with contextlib.aclosing(pulled) as states:
            async for state in states:
                if hold.holds and state.sources:
                    hold.holds = False  # a node of the cluster has it already
                elif hold.holds and state.forecast is not None:
                    fit = await self._fit(node, state)
                    if fit.verdict == "never":
                        yield refused_pull(state, fit)
                        return
                    hold.holds = False
                    if fit.why and fit.verdict == "unknown":
                        yield unreckoned(state, fit)
                    continue
                yield state

    async def forecast(self, node: NodeId, target: PullTarget) -> HeldPull:
        """Return a pull paused at its forecast (bytes to fetch and model card), or its final state
        if it has no forecast.

        A pull has no forecast if the node already has the model, if the pull fails, or after
        `FORECAST_S`. Raises OwnerSilent.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + FORECAST_S
        async with contextlib.aclosing(
            self._workers.pull(node, target, Hold(holds=True))
        ) as states:
            async for state in states:
                if state.forecast is not None or state.phase in ("done", "failed"):
                    return HeldPull(self._copied(node, state), await self._fit(node, state))
                if state.phase in UNDER_WAY:
                    return HeldPull(state, Fit("unknown", why="already being pulled"))
                if loop.time() > give_up_at:
                    late = too_late(state, FORECAST_S)
                    return HeldPull(late, Fit("unknown", why=late.message))
        raise AssertionError("the states of a pull ended before the pull was done or had failed")

    def _copied(self, node: NodeId, state: PullState) -> PullState:
        """Return the state of a pull. If the pull will copy the model from other nodes and the
        model's card is known, add a forecast: the bytes to copy and the node's free disk space."""
        now = self._bus.reactor.now()
        card = self._readings.models(now).get(state.model)
        if not state.sources or card is None:
            return state
        readings = self._readings.fresh(NodeReading, now)
        free_bytes = next(
            (reading.disk_free_bytes for reading in readings if reading.node == node), 0
        )
        forecast = PullForecast(lacking_bytes=card.size_bytes, disk_free_bytes=free_bytes)
        return state.model_copy(update={"forecast": forecast, "total_bytes": card.size_bytes})

    async def _fit(self, node: NodeId, state: PullState) -> Fit:
        """Return the leader's estimate whether the model fits: for a model on a disk, or for a
        model that `node` would pull."""
        forecast = state.forecast
        supposed = None
        if forecast is not None and not state.sources:
            if forecast.card is None:
                return Fit("unknown", why=forecast.why)
            supposed = SupposedModel(node=node, card=forecast.card)
        if state.phase == "failed":
            return Fit("unknown", why=state.message)
        command = PlaceModel(
            command_id=CommandId(new_name("cmd")),
            model=state.model,
            if_absent=False,
            dry_run=True,
            previews=True,
            supposed=supposed,
        )
        return fit_of(await self.ask_leader(command), node)

    async def ask_leader(self, command: PlaceModel) -> Acknowledged | CommandRefused:
        """Return the leader's answer to a placement that is only tried."""
        waiting: asyncio.Future[Acknowledged | CommandRefused] = (
            asyncio.get_running_loop().create_future()
        )

        def answered(answer: Acknowledged | CommandRefused) -> None:
            """Deliver the leader's answer if the caller still waits for it."""
            if not waiting.done():
                waiting.set_result(answer)

        self._bus.command(command, answered, deadline_s=ANSWER_S)
        return await waiting
