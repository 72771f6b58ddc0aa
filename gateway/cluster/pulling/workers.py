"""Talks to the workers of this and other nodes: has one pull a model, and hears how far it is.

The question is repeated for as long as the client waits, for the plane may drop it; a worker that
was killed and is back begins again with what it has. What the client waits no longer for is said,
and stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from bus.client import BusClient
from bus.process.identity import new_name
from bus.wire.ids import NodeId
from bus.wire.messages.readings import PullReading, PullState
from bus.wire.messages.weights import PullAsked
from gateway.cluster.cancels import OwnerSilent
from gateway.cluster.pulling.names import PullTarget
from gateway.cluster.readings import ClusterReadings

ASK_S = 1.0
LOOK_S = 0.1
AGAIN_S = 5.0
SILENT_S = 15.0
"""A worker that says nothing for so long is not there; one starts again within that."""


class PullWorkers:
    """The workers, as those who pull."""

    def __init__(self, bus: BusClient, readings: ClusterReadings) -> None:
        self._bus = bus
        self._readings = readings

    async def follow(self, node: NodeId, target: PullTarget) -> AsyncGenerator[PullState]:
        """Have a node pull, and yield how far it is until it has ended, each state once
        and again after `AGAIN_S`. Leaving it
        early stops the pull, unless others wait for it too. Raises OwnerSilent."""
        question = PullAsked(
            question=new_name("pull"),
            asker=self._bus.speaker.node,
            model=target.model,
            revision=target.revision,
        )
        topic = f"pull.asked.{node}"
        loop = asyncio.get_running_loop()
        asked_at, heard_at, said_at, last = loop.time() - ASK_S, loop.time(), 0.0, None
        try:
            while True:
                now = loop.time()
                if now - asked_at >= ASK_S:
                    self._bus.publish(topic, question)
                    asked_at = now
                state = self._state_of(question.question)
                if state is not None:
                    heard_at = now
                    if state != last or now - said_at >= AGAIN_S:
                        last, said_at = state, now
                        yield state
                    if state.phase in ("done", "failed"):
                        return
                elif now - heard_at > SILENT_S:
                    raise OwnerSilent(f"the worker of node {node}", SILENT_S)
                await asyncio.sleep(LOOK_S)
        finally:
            self._bus.publish(topic, question.model_copy(update={"leaves": True}))

    def _state_of(self, question: str) -> PullState | None:
        readings = self._readings.fresh(PullReading, self._bus.reactor.now())
        pulls = (one for reading in readings for one in reading.pulls)
        return next((one for one in pulls if question in one.questions), None)
