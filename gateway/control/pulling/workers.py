"""Talks to the workers of all nodes: has a worker pull or verify a model or purge its store, and
follows the progress of that work.

The control plane may drop messages, so a question (an order to a worker) is repeated while the
client waits. A worker that restarts continues from the files that it has. When the client stops
waiting, this module tells the worker to stop. Only a pull in the background continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bus.client import BusClient
from bus.process.identity import new_name
from bus.wire.errors import OwnerSilent
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
from gateway.control.pulling.names import PullTarget
from gateway.view.readings import ClusterReadings, storage_of

ASK_S = 1.0
LOOK_S = 0.1
AGAIN_S = 5.0
SILENT_S = 15.0
"""A worker that reports nothing for this long counts as gone. A worker restarts in less time."""


class _Followed(Protocol):
    """The state of a worker's pull, verification or purge. `questions` are the ids of the questions
    that the worker answers with this work."""

    @property
    def questions(self) -> tuple[str, ...]: ...

    @property
    def phase(self) -> str:
        """Return the phase; `done` and `failed` are final."""
        ...


State = TypeVar("State", bound=_Followed)


@dataclass(slots=True)
class Hold:
    """Whether a pull pauses once its worker has reported a forecast. The caller may change this at
    any time."""

    holds: bool = False


class Workers:
    """Sends questions to the workers and follows their states."""

    def __init__(self, bus: BusClient, readings: ClusterReadings) -> None:
        self._bus = bus
        self._readings = readings

    def copy(self, node: NodeId, model: ModelId) -> AsyncGenerator[PullState]:
        """Have a node copy a model from other nodes; see `_follow`."""
        own = self._bus.speaker.node
        question = PullAsked(question=new_name("pull"), asker=own, model=model, copies=True)
        return self._follow(node, "pull.asked", lambda: question, self._pulls)

    def pull(
        self,
        node: NodeId,
        target: PullTarget,
        hold: Hold | None = None,
        *,
        background: bool = False,
        layers: tuple[int, int] | None = None,
    ) -> AsyncGenerator[PullState]:
        """Have a node pull a model, or only what some `layers` [first, last) need, and wait while
        `hold` says so; see `_follow`. A pull in the `background` continues when the client stops
        waiting."""
        question = PullAsked(
            question=new_name("pull"),
            asker=self._bus.speaker.node,
            model=target.model,
            revision=target.revision,
            background=background,
            layers=layers,
        )

        def question_now() -> PullAsked:
            """Return the question to send now, with the current value of `hold`."""
            return question.model_copy(update={"holds": hold is not None and hold.holds})

        return self._follow(node, "pull.asked", question_now, self._pulls)

    def verify(self, node: NodeId, model: ModelId) -> AsyncGenerator[VerifyState]:
        """Have a node verify a model on its disk; see `_follow`."""
        own = self._bus.speaker.node
        question = VerifyAsked(question=new_name("verify"), asker=own, model=model)
        return self._follow(node, "verify.asked", lambda: question, self._verifications)

    def purge(self, node: NodeId) -> AsyncGenerator[PurgeState]:
        """Have a node delete all downloaded models that it may delete; see `_follow`."""
        own = self._bus.speaker.node
        question = PurgeAsked(question=new_name("purge"), asker=own)
        return self._follow(node, "purge.asked", lambda: question, self._purges)

    async def _follow(
        self,
        node: NodeId,
        topic: str,
        question_now: Callable[[], PullAsked | VerifyAsked | PurgeAsked],
        states: Callable[[], list[State]],
    ) -> AsyncGenerator[State]:
        """Send a node a question and yield the state of its work until it ends.

        Each state is yielded once, and again after `AGAIN_S`. Closing the generator early stops the
        work, unless other clients wait for it or it is in the background. Raises OwnerSilent.
        """
        loop = asyncio.get_running_loop()
        asked_at, received_at, yielded_at, last = loop.time() - ASK_S, loop.time(), 0.0, None
        question = question_now()
        try:
            while True:
                now = loop.time()
                if now - asked_at >= ASK_S or question_now() != question:
                    question = question_now()
                    self._bus.publish(f"{topic}.{node}", question)
                    asked_at = now
                mine = (state for state in states() if question.question in state.questions)
                state = next(mine, None)
                if state is not None:
                    received_at = now
                    if state != last or now - yielded_at >= AGAIN_S:
                        last, yielded_at = state, now
                        yield state
                    if state.phase in ("done", "failed"):
                        return
                elif now - received_at > SILENT_S:
                    raise OwnerSilent(f"the worker of node {node}", SILENT_S, "see `shoal nodes`")
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
