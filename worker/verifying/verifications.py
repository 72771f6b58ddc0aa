"""Talks to the bus and to a thread: verifies models of one node, one at a time.

A verification lasts while one of its clients repeats the question; a client that asks for a model
already being verified joins that verification. The worker calls `tick`; the state of each is
published.
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
"""A client that has not repeated its question for this many seconds counts as disconnected."""
ENDED_S = 30.0
"""The result of a verification is kept for this many seconds."""
PUBLISH_S = 0.5
MOST = 16
MOST_QUESTIONS = 64


@dataclass(slots=True)
class _Verification:
    """The verification of one model. `heard` has the instant at which each question last arrived.
    The thread writes `done_bytes` and `total_bytes` and reads `left`, which is set when all clients
    are gone."""

    model: ModelId
    state: VerifyState
    heard: dict[str, float] = field(default_factory=dict[str, float])
    begun_at: float | None = None
    ended_at: float | None = None
    done_bytes: int = 0
    total_bytes: int = 0
    left: bool = False

    def read(self, count: int) -> None:
        """Record that `count` more bytes of the model were read."""
        self.done_bytes += count


class Verifications:
    """The verifications of this node. `here` are the models on its disk."""

    def __init__(self, client: BusClient, here: LocalModels) -> None:
        self._client = client
        self._here = here
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = DiskThread("verifying", self._news.put)
        self._all: list[_Verification] = []
        self._published: tuple[VerifyState, ...] = ()
        self._published_at = client.reactor.now()
        client.hear(f"verify.asked.{client.speaker.node}", self._take_question)

    def tick(self, now: float) -> None:
        """Apply the thread's results and start the next verification. Drop old results, and
        verifications without clients."""
        while not self._news.empty():
            self._news.get()()
        for verification in self._live():
            self._go_on(verification, now)
        self._all = [
            verification
            for verification in self._all
            if verification.ended_at is None or now - verification.ended_at < ENDED_S
        ]
        self._publish(now)

    def models(self) -> frozenset[ModelId]:
        """Return the models of which a verification runs or is waiting to run."""
        return frozenset(verification.model for verification in self._live())

    def close(self) -> None:
        """Interrupt a running verification, and end the thread."""
        self._thread.close()

    def _take_question(self, _topic: str, envelope: Envelope) -> None:
        question, now = envelope.message, self._client.reactor.now()
        if not isinstance(question, VerifyAsked):
            return
        joined = next(
            (verification for verification in self._all if question.question in verification.heard),
            None,
        )
        if joined is None and not question.leaves:
            self._take(question, now)
        elif joined is not None:
            joined.heard[question.question] = now
            if question.leaves and joined.ended_at is None:
                del joined.heard[question.question]

    def _take(self, question: VerifyAsked, now: float) -> None:
        """Join the verification of that model, begin one, or refuse it."""
        live = self._live()
        same = next(
            (verification for verification in live if verification.model == question.model), None
        )
        if same is not None and len(same.heard) < MOST_QUESTIONS:
            same.heard[question.question] = now
            return
        state = VerifyState(model=question.model, phase="waiting")
        fresh = _Verification(question.model, state, {question.question: now})
        self._all.append(fresh)
        if same is not None or len(live) >= MOST:
            self._fail(
                fresh,
                "busy",
                f"too many verifications: this node allows {MOST} models and "
                f"{MOST_QUESTIONS} clients per model",
            )

    def _go_on(self, verification: _Verification, now: float) -> None:
        verification.heard = {q: at for q, at in verification.heard.items() if now - at < LEASE_S}
        if not verification.heard:
            verification.left = True
            self._all.remove(verification)
        elif verification.begun_at is None and self._is_free():
            self._begin(verification, now)
        elif verification.begun_at is not None:
            passed_s = max(now - verification.begun_at, PUBLISH_S)
            facts = {
                "phase": "reading",
                "done_bytes": verification.done_bytes,
                "total_bytes": verification.total_bytes,
                "bytes_per_s": verification.done_bytes / passed_s,
            }
            verification.state = verification.state.model_copy(update=facts)

    def _begin(self, verification: _Verification, now: float) -> None:
        card = self._here.cards.get(verification.model)
        if card is None:
            self._fail(
                verification,
                "not_here",
                f"{verification.model} is not complete on this node's disk",
            )
            return
        if card.origin == "engine":
            self._fail(
                verification,
                "not_here",
                f"{verification.model} is a program of engines.toml; it has no files to verify",
            )
            return
        verification.begun_at = now
        self._client.log.info("verifying a model", model=verification.model, folder=card.path)
        self._thread.add(
            partial(_work, verification, Path(card.path)), partial(self._ended, verification)
        )

    def _ended(self, verification: _Verification, result: Verdict | Exception) -> None:
        if verification.left:
            return
        if isinstance(result, Verdict):
            facts = {
                "phase": "done",
                "done_bytes": verification.done_bytes,
                "total_bytes": verification.total_bytes,
                "bytes_per_s": 0.0,
                "against": result.against,
                "files": result.files,
                "wrong": result.wrong,
                "wrong_count": result.wrong_count,
                "unlisted": result.unlisted,
            }
            verification.state = verification.state.model_copy(update=facts)
            verification.ended_at = self._client.reactor.now()
            self._client.log.info(
                "verified a model", model=verification.model, wrong=result.wrong_count
            )
        else:
            self._fail(
                verification, "unreadable", f"{verification.model} could not be read: {result}"
            )

    def _fail(self, verification: _Verification, reason: str, message: str) -> None:
        self._client.log.warning("could not verify a model", model=verification.model, why=message)
        facts = {"phase": "failed", "reason": reason, "message": message, "bytes_per_s": 0.0}
        verification.state = verification.state.model_copy(update=facts)
        verification.ended_at = self._client.reactor.now()

    def _is_free(self) -> bool:
        return all(verification.begun_at is None for verification in self._live())

    def _live(self) -> list[_Verification]:
        return [verification for verification in self._all if verification.ended_at is None]

    def _publish(self, now: float) -> None:
        """Publish the states: immediately if anything but numbers changed, else twice a second
        while there are verifications."""
        states = tuple(
            verification.state.model_copy(update={"questions": tuple(verification.heard)})
            for verification in self._all
        )
        marks = [
            (verification.model, verification.phase, verification.questions)
            for verification in states
        ]
        published = [
            (verification.model, verification.phase, verification.questions)
            for verification in self._published
        ]
        if marks != published or (self._live() and now - self._published_at >= PUBLISH_S):
            self._published, self._published_at = states, now
            node = self._client.speaker.node
            reading = VerifyReading(node=node, verifications=states)
            self._client.publish(reading_topic("verifies", node), reading)


def _work(verification: _Verification, folder: Path, stopped: Callable[[], bool]) -> Verdict:
    verification.total_bytes = total_bytes(folder)
    return verify(folder, verification.read, lambda: stopped() or verification.left)
