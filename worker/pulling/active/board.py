"""Talks to the bus and to the record on disk: the list of a worker's pulls and their states.

A client sees an ended pull for `ENDED_S`. A background pull that failed or was paused stays in the
list until it is resumed or cancelled, or until another pull of its model succeeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bus.wire.ids import ModelId
from bus.wire.messages.readings import PullPhase, PullReading, PullRefusal, PullState
from bus.wire.topics import reading_topic
from worker.pulling.active.pull import Pull, background_pull
from worker.pulling.active.record import PullRecord, RecordedPull

if TYPE_CHECKING:
    from bus.client import BusClient
    from worker.models.local_models import LocalModels

ENDED_S = 30.0
"""The result of a pull is kept this long."""
PUBLISH_S = 0.5
REPEAT_S = 5.0
"""Ended pulls are published again after this many seconds, because other processes drop old
readings."""
RESTARTED = "resumed after a restart of the node's worker"


class PullBoard:
    """The pulls of this node, with the states that it publishes. `here` are the models on its
    disk."""

    def __init__(self, client: BusClient, record: PullRecord, here: LocalModels) -> None:
        self._client = client
        self._record = record
        self._here = here
        self._published: tuple[PullState, ...] = ()
        self._published_at = client.reactor.now()
        self.pulls = [self._restored(pull) for pull in record.on_disk]

    @property
    def is_recorded(self) -> bool:
        """Return whether the record on disk has the pulls as they were last published."""
        return self._record.is_current

    def live(self) -> list[Pull]:
        return [pull for pull in self.pulls if pull.ended_at is None]

    def fail(self, pull: Pull, reason: PullRefusal, message: str) -> None:
        """End a pull that failed or that a user ended."""
        if reason in ("paused", "cancelled"):
            self._client.log.info("a user ended a pull", model=pull.model, how=reason)
        else:
            self._client.log.warning("could not pull a model", model=pull.model, why=message)
        pull.state = pull.state.model_copy(update={"reason": reason, "message": message})
        pull.standing.withdraw()
        self.end(pull, "failed")

    def end(self, pull: Pull, phase: PullPhase, note: str = "") -> None:
        """End a pull. A pull that is done replaces earlier failed pulls of its model."""
        pull.ended_at = self._client.reactor.now()
        update: dict[str, Any] = {"phase": phase, "bytes_per_s": 0.0, "note": note}
        card = self._here.cards.get(pull.model)
        if phase == "done" and card is not None and not pull.state.total_bytes:
            update |= {"done_bytes": card.size_bytes, "total_bytes": card.size_bytes}
        pull.state = pull.state.model_copy(update=update)
        if phase == "done":
            pull.background = False
            self.supersede(pull)
        if phase == "done" and not note:
            self._client.log.info(
                "pulled a model", model=pull.model, received_bytes=pull.state.received_bytes
            )

    def supersede(self, pull: Pull) -> None:
        """Forget the failed and paused pulls of the model, because `pull` replaces them."""
        for other in self.pulls:
            if other is not pull and other.model == pull.model and other.ended_at is not None:
                other.background = False

    def publish(self, now: float) -> None:
        """Forget old results and record the background pulls. Publish the states: immediately if
        anything but numbers changed, else twice a second while a pull runs."""
        self.pulls = [
            pull
            for pull in self.pulls
            if pull.ended_at is None or pull.background or now - pull.ended_at < ENDED_S
        ]
        self._record.keep([_recorded(pull) for pull in self.pulls if pull.background], now)
        states = tuple(map(self._state, self.pulls))
        repeat_s = PUBLISH_S if self.live() else REPEAT_S
        if list(map(_mark, states)) != list(map(_mark, self._published)) or (
            states and now - self._published_at >= repeat_s
        ):
            self._published, self._published_at = states, now
            node = self._client.speaker.node
            self._client.publish(reading_topic("pulls", node), PullReading(node=node, pulls=states))

    def close(self) -> None:
        self._record.close()

    def _state(self, pull: Pull) -> PullState:
        is_safe = pull.ended_at is not None or self._record.has(pull.model)
        return pull.state.model_copy(
            update={
                "questions": tuple(pull.heard),
                "claim": pull.standing.claim,
                "background": pull.background and is_safe,
                "layers": pull.layers,
            }
        )

    def _restored(self, recorded: RecordedPull) -> Pull:
        now = self._client.reactor.now()
        model, layers = ModelId(recorded.model), recorded.layers
        pull = background_pull(model, recorded.revision, layers, now, RESTARTED)
        if recorded.reason is None:
            self._client.log.info("resuming a pull after a restart", model=pull.model)
        else:
            facts = {"phase": "failed", "reason": recorded.reason, "message": recorded.message}
            pull.state = pull.state.model_copy(update={**facts, "note": ""})
            pull.ended_at = now
        return pull


def _recorded(pull: Pull) -> RecordedPull:
    reason, message = pull.state.reason, pull.state.message
    if pull.ended_at is None:
        reason, message = None, ""
    return RecordedPull(
        model=pull.model,
        revision=pull.revision,
        layers=pull.layers,
        reason=reason,
        message=message,
    )


def _mark(state: PullState) -> tuple[object, ...]:
    has_forecast = state.forecast is not None
    facts = (state.model, state.phase, state.questions, state.note, has_forecast, state.claim)
    return (*facts, state.background, state.reason)
