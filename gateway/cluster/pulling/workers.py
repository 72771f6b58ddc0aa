"""Talks to the workers of all nodes: has one pull or verify a model, or purge its store, and
hears how far it is.

The question is repeated for as long as the client waits, for the plane may drop it; a worker that
was killed and is back begins again with what it has. What the client waits no longer for is said,
and stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bus.client import BusClient
from bus.process.identity import new_name
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullReading, PullState
from bus.wire.messages.weights import (
    PullAsked,
    PurgeAsked,
    PurgeState,
    VerifyAsked,
    VerifyReading,
    VerifyState,
)
from gateway.cluster.cancels import OwnerSilent
from gateway.cluster.pulling.names import PullTarget
from gateway.cluster.readings import ClusterReadings, storage_of

ASK_S = 1.0
LOOK_S = 0.1
AGAIN_S = 5.0
SILENT_S = 15.0
"""A worker that says nothing for so long is not there; one starts again within that."""


class _Told(Protocol):
    """A state that names the questions of those who wait."""

    @property
    def questions(self) -> tuple[str, ...]:
        """Return them."""
        ...

    @property
    def phase(self) -> str:
        """Return how far it is; `done` and `failed` are the end."""
        ...


State = TypeVar("State", bound=_Told)


@dataclass(slots=True)
class Hold:
    """Whether a pull is to wait once its worker has told what would come; who asked for it may
    change that at any time."""

    holds: bool = False


class Workers:
    """The workers, as those who pull and verify."""

    def __init__(self, bus: BusClient, readings: ClusterReadings) -> None:
        self._bus = bus
        self._readings = readings

    def copy(self, node: NodeId, model: ModelId) -> AsyncGenerator[PullState]:
        """Have a node copy a model from others that have it; see `_follow`."""
        own = self._bus.speaker.node
        question = PullAsked(question=new_name("pull"), asker=own, model=model, copies=True)
        return self._follow(node, "pull.asked", lambda: question, self._pulls)

    def pull(
        self, node: NodeId, target: PullTarget, hold: Hold | None = None
    ) -> AsyncGenerator[PullState]:
        """Have a node pull, held for as long as `hold` says so; see `_follow`."""
        question = PullAsked(
            question=new_name("pull"),
            asker=self._bus.speaker.node,
            model=target.model,
            revision=target.revision,
        )

        def asked() -> PullAsked:
            """Return what is asked now."""
            return question.model_copy(update={"holds": hold is not None and hold.holds})

        return self._follow(node, "pull.asked", asked, self._pulls)

    def verify(self, node: NodeId, model: ModelId) -> AsyncGenerator[VerifyState]:
        """Have a node verify a model on its disk; see `_follow`."""
        own = self._bus.speaker.node
        question = VerifyAsked(question=new_name("verify"), asker=own, model=model)
        return self._follow(node, "verify.asked", lambda: question, self._verifications)

    def purge(self, node: NodeId) -> AsyncGenerator[PurgeState]:
        """Have a node let go all that it fetched and may let go; see `_follow`."""
        own = self._bus.speaker.node
        question = PurgeAsked(question=new_name("purge"), asker=own)
        return self._follow(node, "purge.asked", lambda: question, self._purges)

    async def _follow(
        self,
        node: NodeId,
        topic: str,
        asked: Callable[[], PullAsked | VerifyAsked | PurgeAsked],
        states: Callable[[], list[State]],
    ) -> AsyncGenerator[State]:
        """Have a node do what is asked, and yield how far it is until it has ended, each state once
        and again after `AGAIN_S`. Leaving it early stops the work, unless others wait for it too.
        Raises OwnerSilent."""
        loop = asyncio.get_running_loop()
        asked_at, heard_at, said_at, last = loop.time() - ASK_S, loop.time(), 0.0, None
        question = asked()
        try:
            while True:
                now = loop.time()
                if now - asked_at >= ASK_S or asked() != question:
                    question = asked()
                    self._bus.publish(f"{topic}.{node}", question)
                    asked_at = now
                mine = (one for one in states() if question.question in one.questions)
                state = next(mine, None)
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
            self._bus.publish(f"{topic}.{node}", question.model_copy(update={"leaves": True}))

    def _pulls(self) -> list[PullState]:
        readings = self._readings.fresh(PullReading, self._bus.reactor.now())
        return [pull for reading in readings for pull in reading.pulls]

    def _purges(self) -> list[PurgeState]:
        readings = storage_of(self._readings, self._bus.reactor.now())
        return [purge for reading in readings for purge in reading.purges]

    def _verifications(self) -> list[VerifyState]:
        readings = self._readings.fresh(VerifyReading, self._bus.reactor.now())
        return [verification for reading in readings for verification in reading.verifications]
