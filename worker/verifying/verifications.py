"""Talks to the bus and to a thread: the models of one node that are being verified, one at a time.

A verification is wanted for as long as one of those who asked repeats it; who asks for a model that
is being verified joins. `tick` is called by the worker; how each stands is published.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from bus.wire.ids import ModelId
from bus.wire.messages.weights import VerifyAsked, VerifyReading, VerifyState
from bus.wire.topics import reading_topic
from worker.transfer.disk_thread import DiskThread
from worker.verifying.checks import Verdict, total_bytes, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from bus.client import BusClient
    from bus.wire.codec import Envelope
    from worker.models.local_models import LocalModels

LEASE_S = 10.0
"""Who has not repeated a question for so long waits no longer."""
ENDED_S = 30.0
"""How a verification ended is told for so long."""
PUBLISH_S = 0.5
MOST = 16
MOST_QUESTIONS = 64


@dataclass(slots=True)
class _Verification:
    """One model's. `heard` says of each question when it was repeated last. `done_bytes` and
    `total_bytes` are written by the thread, `left` is read by it: no client waits any more."""

    model: ModelId
    state: VerifyState
    heard: dict[str, float] = field(default_factory=dict[str, float])
    begun_at: float | None = None
    ended_at: float | None = None
    done_bytes: int = 0
    total_bytes: int = 0
    left: bool = False

    def read(self, count: int) -> None:
        """Take in that so many bytes more were read."""
        self.done_bytes += count


class Verifications:
    """What of this node is verified. `here` is what lies on its disk."""

    def __init__(self, client: BusClient, here: LocalModels) -> None:
        self._client = client
        self._here = here
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = DiskThread("verifying", self._news.put)
        self._all: list[_Verification] = []
        self._published: tuple[VerifyState, ...] = ()
        self._published_at = client.reactor.now()
        client.hear(f"verify.asked.{client.speaker.node}", self._asked)

    def tick(self, now: float) -> None:
        """Do what is due, and take in what the thread has ended."""
        while not self._news.empty():
            self._news.get()()
        for one in self._live():
            self._go_on(one, now)
        self._all = [
            one for one in self._all if one.ended_at is None or now - one.ended_at < ENDED_S
        ]
        self._publish(now)

    def models(self) -> frozenset[ModelId]:
        """Return the models that are being verified, or wait for it."""
        return frozenset(one.model for one in self._live())

    def close(self) -> None:
        """Interrupt what is under way, and end the thread."""
        self._thread.close()

    def _asked(self, _topic: str, envelope: Envelope) -> None:
        asked, now = envelope.message, self._client.reactor.now()
        if not isinstance(asked, VerifyAsked):
            return
        known = next((one for one in self._all if asked.question in one.heard), None)
        if known is None and not asked.leaves:
            self._take(asked, now)
        elif known is not None:
            known.heard[asked.question] = now
            if asked.leaves and known.ended_at is None:
                del known.heard[asked.question]

    def _take(self, asked: VerifyAsked, now: float) -> None:
        """Join the verification of that model, begin one, or refuse it."""
        live = self._live()
        same = next((one for one in live if one.model == asked.model), None)
        if same is not None and len(same.heard) < MOST_QUESTIONS:
            same.heard[asked.question] = now
            return
        state = VerifyState(model=asked.model, phase="waiting")
        fresh = _Verification(asked.model, state, {asked.question: now})
        self._all.append(fresh)
        if same is not None or len(live) >= MOST:
            self._fail(fresh, "busy", f"{MOST} models wait here, or {MOST_QUESTIONS} for this one")

    def _go_on(self, one: _Verification, now: float) -> None:
        one.heard = {q: at for q, at in one.heard.items() if now - at < LEASE_S}
        if not one.heard:
            one.left = True
            self._all.remove(one)
        elif one.begun_at is None and self._is_free():
            self._begin(one, now)
        elif one.begun_at is not None:
            passed_s = max(now - one.begun_at, PUBLISH_S)
            told = {
                "phase": "reading",
                "done_bytes": one.done_bytes,
                "total_bytes": one.total_bytes,
                "bytes_per_s": one.done_bytes / passed_s,
            }
            one.state = one.state.model_copy(update=told)

    def _begin(self, one: _Verification, now: float) -> None:
        card = self._here.cards.get(one.model)
        if card is None:
            self._fail(one, "not_here", f"{one.model} is not whole on this node's disk")
            return
        one.begun_at = now
        self._client.log.info("verifies a model", model=one.model, folder=card.path)
        self._thread.add(partial(_work, one, Path(card.path)), partial(self._ended, one))

    def _ended(self, one: _Verification, result: Verdict | Exception) -> None:
        if one.left:
            return
        if isinstance(result, Verdict):
            told = {
                "phase": "done",
                "done_bytes": one.done_bytes,
                "total_bytes": one.total_bytes,
                "bytes_per_s": 0.0,
                "against": result.against,
                "files": result.files,
                "wrong": result.wrong,
                "wrong_count": result.wrong_count,
                "unlisted": result.unlisted,
            }
            one.state = one.state.model_copy(update=told)
            one.ended_at = self._client.reactor.now()
            self._client.log.info("verified a model", model=one.model, wrong=result.wrong_count)
        else:
            self._fail(one, "unreadable", f"{one.model} could not be read: {result}")

    def _fail(self, one: _Verification, reason: str, message: str) -> None:
        self._client.log.warning("could not verify a model", model=one.model, why=message)
        told = {"phase": "failed", "reason": reason, "message": message, "bytes_per_s": 0.0}
        one.state = one.state.model_copy(update=told)
        one.ended_at = self._client.reactor.now()

    def _is_free(self) -> bool:
        return all(one.begun_at is None for one in self._live())

    def _live(self) -> list[_Verification]:
        return [one for one in self._all if one.ended_at is None]

    def _publish(self, now: float) -> None:
        """Publish when more than a figure has changed, and twice a second while there are any."""
        told = tuple(
            one.state.model_copy(update={"questions": tuple(one.heard)}) for one in self._all
        )
        marks = [(one.model, one.phase, one.questions) for one in told]
        known = [(one.model, one.phase, one.questions) for one in self._published]
        if marks != known or (self._live() and now - self._published_at >= PUBLISH_S):
            self._published, self._published_at = told, now
            node = self._client.speaker.node
            reading = VerifyReading(node=node, verifications=told)
            self._client.publish(reading_topic("verifies", node), reading)


def _work(one: _Verification, folder: Path, stopped: Callable[[], bool]) -> Verdict:
    one.total_bytes = total_bytes(folder)
    return verify(folder, one.read, lambda: stopped() or one.left)
