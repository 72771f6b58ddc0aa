"""Talks to the bus, to pull processes and to this node's fetches: the pulls of one worker.

A pull lasts while one of its clients repeats the question; a client that asks for a model already
being pulled joins. A model that another node offers, or fetches (`claims`), is copied from there,
unless a revision is requested; if all clients want a copy, no hub is contacted. If all clients hold
the pull (`holds`), it reports its forecast and waits. The worker calls `Pulls.tick` and `looked`;
the state of each pull is published.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bus.process.clock import wall
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId
from bus.wire.messages.readings import PullForecast, PullPhase, PullReading, PullRefusal, PullState
from bus.wire.messages.weights import PullAsked
from bus.wire.topics import reading_topic
from worker.pulling.claims import Claims, PullStanding
from worker.pulling.order import HERE_ALREADY, PullOrder, PullSettings, is_repository
from worker.pulling.processes import PullProcess

if TYPE_CHECKING:
    from bus.client import BusClient
    from bus.wire.codec import Envelope
    from worker.models.local_models import LocalModels
    from worker.transfer.downloads import Downloads

LEASE_S = 10.0
"""A client that has not repeated its question for this long counts as disconnected."""
ENDED_S = 30.0
"""The result of a pull is kept this long."""
PUBLISH_S = 0.5
AT_ONCE = 2
"""Concurrent pulls from a hub, and concurrent copies; others wait."""
GIVER_S = 10.0
"""Other nodes' cards may be this late: a copy waits this long for a node that offers it."""
MOST_PULLS = 16
MOST_QUESTIONS = 64
YIELDS_BYTES = 64 << 20
"""A node that has fetched this much continues, even if another node has precedence."""


@dataclass(slots=True)
class _Pull:
    """One pull. `heard` has the last repetition of each question. `goes` is set when a client does
    not hold it, and `released` when its process may fetch. `came` is set while the files are in
    place but the disk was not scanned since. `from_hub` are the questions that allow a hub. The
    first question came at `asked_at`. `standing` is its relation to other nodes' pulls."""

    model: ModelId
    revision: str
    state: PullState
    heard: dict[str, float] = field(default_factory=dict[str, float])
    process: PullProcess | None = None
    goes: bool = False
    released: bool = False
    no_copy: bool = False
    from_hub: set[str] = field(default_factory=set[str])
    asked_at: float = 0.0
    came: bool = False
    ended_at: float | None = None
    standing: PullStanding = field(default_factory=PullStanding)

    @property
    def copies(self) -> bool:
        return not self.from_hub & self.heard.keys()

    def begin(self) -> None:
        """Let the pull's process fetch from the hub, and announce that to other nodes."""
        self.released = True
        self.standing.begin()

    def stop(self, downloads: Downloads) -> None:
        if self.process is not None:
            self.process.stop()
        if self.state.phase == "copying":
            downloads.let_go(self.model)


class Pulls:
    """The pulls of this node. `here` are the models on its disk."""

    def __init__(
        self, client: BusClient, settings: PullSettings, downloads: Downloads, here: LocalModels
    ) -> None:
        self._client = client
        self._settings = settings
        self._downloads = downloads
        self._here = here
        self._pulls: list[_Pull] = []
        self._claims = Claims(client.speaker.node, settings.hub)
        self._published: tuple[PullState, ...] = ()
        self._published_at = client.reactor.now()
        client.hear(f"pull.asked.{client.speaker.node}", self._take_question)
        now = client.reactor.now
        client.hear(
            "reading.pulls", lambda _, envelope: self._claims.observe(envelope.message, now())
        )

    def tick(self, now: float) -> None:
        for pull in self._live():
            self._expire(pull, now)
        for pull in self._live():
            self._go_on(pull, now)
        self._pulls = [p for p in self._pulls if p.ended_at is None or now - p.ended_at < ENDED_S]
        self._publish(now)

    def came(self) -> list[ModelId]:
        return [pull.model for pull in self._live() if pull.came]

    def looked(self, came: Collection[ModelId]) -> None:
        """Record a scan of the disk: the models `came`, which had arrived before the scan began,
        must be among the models now."""
        for pull in self._live():
            if not pull.came or pull.model not in came:
                continue
            if pull.model in self._here.cards:
                self._end(pull, "done", pull.state.note)
                continue
            notices = [notice for notice in self._here.passed_over if notice.name == pull.model]
            why = "; ".join(f"{notice.why} ({notice.remedy})" for notice in notices)
            text = f"{pull.model} was pulled, but this node cannot run it: {why}"
            self._fail(pull, "unfit", text)

    def close(self) -> None:
        for pull in self._live():
            pull.stop(self._downloads)

    # --- who asks ---

    def _take_question(self, _topic: str, envelope: Envelope) -> None:
        question = envelope.message
        if not isinstance(question, PullAsked):
            return
        now = self._client.reactor.now()
        joined = next((p for p in self._pulls if question.question in p.heard), None)
        if joined is not None:
            joined.heard[question.question] = now
            joined.goes = joined.goes or not (question.holds or question.leaves)
            if question.leaves and joined.ended_at is None:
                del joined.heard[question.question]
        elif not question.leaves:
            self._take(question, now)

    def _take(self, question: PullAsked, now: float) -> None:
        """Join the pull of that model, begin one, or refuse it."""
        live = self._live()
        may_be_asked = question.copies or is_repository(question.model)
        same = next((pull for pull in live if pull.model == question.model), None)
        if (
            same is not None
            and same.revision == question.revision
            and len(same.heard) < MOST_QUESTIONS
            and may_be_asked
        ):
            same.heard[question.question] = now
            same.goes = same.goes or not question.holds
            if not question.copies:
                same.from_hub.add(question.question)
            return
        state = PullState(model=question.model, phase="waiting")
        pull = _Pull(question.model, question.revision, state, {question.question: now})
        pull.goes, pull.asked_at = not question.holds, now
        if not question.copies:
            pull.from_hub.add(question.question)
        self._pulls.append(pull)
        if not may_be_asked:
            text = f"{question.model} is not a repository name of the form OWNER/NAME"
            self._fail(pull, "bad_name", text)
        elif same is not None and same.revision != question.revision:
            other = same.revision or "the newest"
            text = f"{question.model} is already being pulled at another revision ({other})"
            self._fail(pull, "conflict", text)
        elif same is not None or len(live) >= MOST_PULLS:
            text = (
                f"too many pulls: this node allows {MOST_PULLS} open pulls and "
                f"{MOST_QUESTIONS} clients per pull"
            )
            self._fail(pull, "busy", text)

    def _expire(self, pull: _Pull, now: float) -> None:
        pull.heard = {q: at for q, at in pull.heard.items() if now - at < LEASE_S}
        if not pull.heard and not pull.came:
            self._client.log.info("stopped a pull that no client waits for", model=pull.model)
            pull.stop(self._downloads)
            self._pulls.remove(pull)

    # --- how it goes on ---

    def _go_on(self, pull: _Pull, now: float) -> None:
        if pull.process is not None:
            self._follow_process(pull, pull.process)
            self._release(pull, pull.process, now)
        elif pull.state.phase == "copying":
            self._copied(pull)
        else:
            self._start(pull, now)

    def _start(self, pull: _Pull, now: float) -> None:
        is_here = pull.model in self._here.cards
        if is_here and not pull.revision:
            self._end(pull, "done", note=HERE_ALREADY)
            return
        if not is_here and not pull.revision and not pull.no_copy:
            if not self._downloads.elsewhere(now).has_heard:
                return
            if givers := self._downloads.givers(pull.model, now):
                if not pull.goes:
                    facts = {"forecast": PullForecast(), "sources": givers}
                    pull.state = pull.state.model_copy(update=facts)
                    return
                if sum(other.state.phase == "copying" for other in self._live()) >= AT_ONCE:
                    return
                self._downloads.hold(pull.model, now)
                self._client.log.info("copying a model from another node", model=pull.model)
                pull.state = PullState(model=pull.model, phase="copying", sources=givers)
                pull.standing.withdraw()
                return
        if pull.copies:
            if (why := _no_giver(pull, now)) is not None:
                self._fail(pull, "no_giver", f"{pull.model} could not be copied: {why}")
        elif pull.goes and self._follows(pull, now):
            pass
        elif self._settings.offline:
            why = pull.standing.left
            text = (
                "offline = true: this node does not contact a hub, and no other node "
                f"offers {pull.model}"
            )
            self._fail(pull, "offline", f"{text}{why and f': {why}'}")
        elif not _has_turn(pull, self._live()):
            pull.standing.withdraw()
        elif not pull.goes or self._claimed(pull, now):
            self._pull(pull)

    def _release(self, pull: _Pull, process: PullProcess, now: float) -> None:
        """Resume a held pull when it may run. If too many pulls are running, or another node
        fetches the model, the process of the held pull ends, and a new one starts later."""
        fetches, has_forecast = pull.released, pull.state.forecast is not None
        if pull.ended_at is not None or pull.came or not pull.goes or not (fetches or has_forecast):
            return
        if fetches and not _yields(pull.state):
            return
        pull.state = pull.state.model_copy(update={"forecast": None})
        if self._follows(pull, now):
            pull.standing.give_way()
        elif fetches:
            return
        elif not _has_turn(pull, self._live()):
            pull.standing.withdraw()
            pull.state = PullState(model=pull.model, phase="waiting")
        else:
            if self._claimed(pull, now):
                pull.begin()
                process.go()
            return
        process.stop()
        pull.process, pull.released = None, False

    def _follows(self, pull: _Pull, now: float) -> bool:
        """Return whether to copy the model from another node that fetches it, and report that."""
        if pull.revision or pull.no_copy or pull.model in self._here.cards:
            return False
        cards = self._downloads.elsewhere(now).cards
        state = self._claims.followed(pull.model, pull.standing, cards, now)
        if state is None and pull.process is None and (left := pull.standing.left):
            pull.state = PullState(model=pull.model, phase="waiting", note=left)
        pull.state = state or pull.state
        return state is not None

    def _claimed(self, pull: _Pull, now: float) -> bool:
        """Claim a model for this node, and return whether it may fetch it now."""
        gives = bool(self._downloads.addresses)
        settled = pull.revision or self._claims.claim(pull.standing, now, wall(), gives=gives)
        return bool(settled) or not self._downloads.elsewhere(now).cards

    def _pull(self, pull: _Pull) -> None:
        card, settings = self._here.cards.get(pull.model), self._settings
        order = PullOrder(
            pull.model,
            pull.revision,
            str(settings.models),
            "" if card is None else card.path,
            holds=not pull.goes,
            float32=settings.float32,
            kv=settings.kv,
        )
        if pull.goes:
            pull.begin()
        self._client.log.info("pulling a model", model=pull.model, revision=pull.revision)
        pull.process = PullProcess(order)

    def _follow_process(self, pull: _Pull, process: PullProcess) -> None:
        has_ended, state = process.ended, process.state
        if state is not None and state.phase == "done":
            pull.came = True
            pull.state = state.model_copy(update={"phase": "publishing"})
        elif state is not None and state.phase == "failed":
            pull.state = state
            self._fail(pull, state.reason or "broken", state.message)
        elif has_ended:
            self._fail(pull, "broken", "the pull process ended; see `shoal logs worker`")
        elif state is not None:
            pull.state = state

    def _copied(self, pull: _Pull) -> None:
        """Update a pull with the progress of the copy from other nodes. If the copy fails, fetch
        from the hub."""
        if pull.model in self._here.cards:
            self._downloads.let_go(pull.model)
            self._end(pull, "done")
            return
        now = self._client.reactor.now()
        outcome = self._downloads.elsewhere(now).fetches.get(pull.model)
        reading = self._downloads.reading_of(pull.model)
        if isinstance(outcome, Refusal):
            self._downloads.let_go(pull.model)
            pull.no_copy = True
            note = f"no node could provide it ({outcome.message})"
            note += "" if pull.copies else "; trying the hub"
            pull.state = PullState(model=pull.model, phase="waiting", note=note)
            if outcome.reason == "disk_full":
                self._fail(pull, "disk_full", outcome.message)
        elif reading is None or reading.phase == "done":
            self._downloads.hold(pull.model, now)
        else:
            pull.state = pull.state.model_copy(
                update={
                    "done_bytes": reading.done_bytes,
                    "total_bytes": reading.total_bytes,
                    "bytes_per_s": reading.bytes_per_s,
                    "sources": reading.sources or pull.state.sources,
                }
            )

    def _fail(self, pull: _Pull, reason: PullRefusal, message: str) -> None:
        self._client.log.warning("could not pull a model", model=pull.model, why=message)
        pull.state = pull.state.model_copy(update={"reason": reason, "message": message})
        pull.standing.withdraw()
        self._end(pull, "failed")

    def _end(self, pull: _Pull, phase: PullPhase, note: str = "") -> None:
        pull.ended_at = self._client.reactor.now()
        update: dict[str, Any] = {"phase": phase, "bytes_per_s": 0.0, "note": note}
        card = self._here.cards.get(pull.model)
        if phase == "done" and card is not None and not pull.state.total_bytes:
            update |= {"done_bytes": card.size_bytes, "total_bytes": card.size_bytes}
        pull.state = pull.state.model_copy(update=update)
        if phase == "done" and not note:
            self._client.log.info(
                "pulled a model", model=pull.model, received_bytes=pull.state.received_bytes
            )

    # --- what is told ---

    def _live(self) -> list[_Pull]:
        return [pull for pull in self._pulls if pull.ended_at is None]

    def _publish(self, now: float) -> None:
        """Publish the pulls' states: immediately if anything but numbers changed, else twice a
        second while there are pulls."""
        pulls = tuple(
            pull.state.model_copy(
                update={"questions": tuple(pull.heard), "claim": pull.standing.claim}
            )
            for pull in self._pulls
        )
        if list(map(_mark, pulls)) != list(map(_mark, self._published)) or (
            self._live() and now - self._published_at >= PUBLISH_S
        ):
            self._published, self._published_at = pulls, now
            node = self._client.speaker.node
            self._client.publish(reading_topic("pulls", node), PullReading(node=node, pulls=pulls))


def _no_giver(pull: _Pull, now: float) -> str | None:
    """Return why no other node offers the model; None while one still may."""
    if not pull.no_copy and now - pull.asked_at <= GIVER_S:
        return None
    return pull.state.note or "no other connected node offers it"


def _has_turn(pull: _Pull, live: Collection[_Pull]) -> bool:
    """Return whether a pull may start its process now. At most `AT_ONCE` processes fetch, and as
    many wait after their forecast (held pulls)."""
    busy = [other for other in live if other.process is not None and other is not pull]
    return sum(other.released == pull.goes for other in busy) < AT_ONCE


def _yields(state: PullState) -> bool:
    return state.phase in ("listing", "fetching") and state.received_bytes < YIELDS_BYTES


def _mark(state: PullState) -> tuple[object, ...]:
    has_forecast = state.forecast is not None
    return state.model, state.phase, state.questions, state.note, has_forecast, state.claim
