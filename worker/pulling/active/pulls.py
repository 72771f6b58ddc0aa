"""Talks to the bus, to pull processes and to this node's fetches: decides about each pull.

A pull lasts while one of its clients repeats the question, or until it ends if a client wants it in
the background. A client that asks for a model already being pulled joins that pull. A model that
another node offers, or fetches (`claims`), is copied from there. A pull of a revision or of layers
always comes from the hub. If all clients want a copy, no hub is contacted. If all clients hold the
pull (`holds`), it reports its forecast and waits. The worker calls `Pulls.tick` and `looked`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from bus.process.clock import wall
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId
from bus.wire.messages.readings import PullForecast, PullState
from bus.wire.messages.weights import PullAsked
from worker.pulling.active.board import PullBoard
from worker.pulling.active.changes import PullChanges
from worker.pulling.active.pull import AT_ONCE, Pull, has_turn, why_no_giver, yields
from worker.pulling.active.record import PullRecord
from worker.pulling.claims import Claims
from worker.pulling.order import HERE_ALREADY, PullOrder, PullSettings, is_repository
from worker.pulling.processes import PullProcess

if TYPE_CHECKING:
    from bus.client import BusClient
    from bus.wire.codec import Envelope
    from worker.models.local_models import LocalModels
    from worker.transfer.downloads import Downloads

LEASE_S = 10.0
"""A client that has not repeated its question for this long counts as disconnected."""
MOST_PULLS = 16
MOST_QUESTIONS = 64


class Pulls:
    """The pulls of this node. `here` are the models on its disk. `changes` ends, pauses and resumes
    pulls."""

    def __init__(
        self, client: BusClient, settings: PullSettings, downloads: Downloads, here: LocalModels
    ) -> None:
        self._client = client
        self._settings = settings
        self._downloads = downloads
        self._here = here
        self._board = PullBoard(client, PullRecord(settings.record, client.log), here)
        self.changes = PullChanges(client, self._board, downloads, settings.models)
        self._claims = Claims(client.speaker.node, settings.hub)
        self._scanned_at = float("-inf")
        client.hear(f"pull.asked.{client.speaker.node}", self._take_question)
        now = client.reactor.now
        client.hear(
            "reading.pulls", lambda _, envelope: self._claims.observe(envelope.message, now())
        )

    def tick(self, now: float) -> None:
        for pull in self._board.live():
            self._expire(pull, now)
        for pull in self._board.live():
            self._go_on(pull, now)
        self._board.publish(now)
        self.changes.tick()

    def came(self) -> list[ModelId]:
        return [pull.model for pull in self._board.live() if pull.came]

    def awaits_scan(self) -> bool:
        """Return whether a pull waits for the next scan of the disk."""
        return any(self._may_be_deleted(pull) for pull in self._board.live())

    def looked(self, came: Collection[ModelId], began_at: float) -> None:
        """Record a scan of the disk that began at `began_at`. The models `came` had arrived before
        it. Their pulls end now: done if the scan found the model, else failed."""
        self._scanned_at = began_at
        for pull in self._board.live():
            if not pull.came or pull.model not in came:
                continue
            if pull.model in self._here.cards or self._has_layers(pull):
                self._board.end(pull, "done", pull.state.note)
                continue
            notices = [notice for notice in self._here.passed_over if notice.name == pull.model]
            why = "; ".join(f"{notice.why} ({notice.remedy})" for notice in notices)
            text = f"{pull.model} was pulled, but this node cannot run it: {why}"
            self._board.fail(pull, "unfit", text)

    def _has_layers(self, pull: Pull) -> bool:
        if pull.layers is None:
            return False
        part = self._here.parts.get(pull.model)
        return part is not None and part.holds(*pull.layers)

    def close(self) -> None:
        for pull in self._board.live():
            pull.stop(self._downloads)
        self.changes.close()
        self._board.close()

    # --- who asks ---

    def _take_question(self, _topic: str, envelope: Envelope) -> None:
        question = envelope.message
        if not isinstance(question, PullAsked):
            return
        now = self._client.reactor.now()
        joined = next((p for p in self._board.pulls if question.question in p.heard), None)
        if joined is not None:
            joined.heard[question.question] = now
            joined.goes = joined.goes or not (question.holds or question.leaves)
            if joined.ended_at is None:
                self._note_background(joined, question)
                if question.leaves:
                    del joined.heard[question.question]
        elif not question.leaves:
            self._take(question, now)

    def _take(self, question: PullAsked, now: float) -> None:
        """Join the pull of that model, begin one, or refuse it."""
        for pull in self._board.live():
            self._expire(pull, now)
        live = self._board.live()
        may_be_asked = question.copies or is_repository(question.model)
        same = next((pull for pull in live if pull.model == question.model), None)
        if (
            same is not None
            and (same.revision, same.layers) == (question.revision, question.layers)
            and len(same.heard) < MOST_QUESTIONS
            and may_be_asked
        ):
            same.heard[question.question] = now
            same.goes = same.goes or not question.holds
            if not question.copies:
                same.from_hub.add(question.question)
            self._note_background(same, question)
            return
        state = PullState(model=question.model, phase="waiting")
        pull = Pull(question.model, question.revision, state, {question.question: now})
        pull.goes, pull.asked_at, pull.layers = not question.holds, now, question.layers
        if not question.copies:
            pull.from_hub.add(question.question)
        self._board.pulls.append(pull)
        if not may_be_asked:
            text = (
                f"{question.model} is not a repository name of the form OWNER/NAME[:QUANTISATION]"
            )
            self._board.fail(pull, "bad_name", text)
        elif same is not None and same.revision != question.revision:
            other = same.revision or "the newest"
            text = f"{question.model} is already being pulled at another revision ({other})"
            self._board.fail(pull, "conflict", text)
        elif same is not None and same.layers != question.layers:
            text = f"{question.model} is already being pulled, but not with the same layers"
            self._board.fail(pull, "conflict", text)
        elif same is not None or len(live) >= MOST_PULLS:
            text = (
                f"too many pulls: this node allows {MOST_PULLS} open pulls and "
                f"{MOST_QUESTIONS} clients per pull"
            )
            self._board.fail(pull, "busy", text)
        else:
            self._note_background(pull, question)

    def _note_background(self, pull: Pull, question: PullAsked) -> None:
        """Continue a pull in the background if the client wants that and does not hold it."""
        if question.background and not (pull.background or question.holds or question.leaves):
            pull.background = True
            self._board.supersede(pull)

    def _expire(self, pull: Pull, now: float) -> None:
        pull.heard = {q: at for q, at in pull.heard.items() if now - at < LEASE_S}
        if not pull.heard and not pull.came and not pull.background:
            self._client.log.info("stopped a pull that no client waits for", model=pull.model)
            pull.stop(self._downloads)
            self._board.pulls.remove(pull)

    # --- how it goes on ---

    def _go_on(self, pull: Pull, now: float) -> None:
        if pull.process is not None:
            self._follow_process(pull, pull.process)
            self._release(pull, pull.process, now)
        elif pull.state.phase == "copying":
            self._copied(pull)
        else:
            self._start(pull, now)

    def _start(self, pull: Pull, now: float) -> None:
        if self._may_be_deleted(pull):
            return
        is_here = pull.model in self._here.cards
        if is_here and not pull.revision:
            self._board.end(pull, "done", note=HERE_ALREADY)
            return
        if not is_here and not pull.needs_hub and not pull.no_copy:
            if not self._downloads.elsewhere(now).has_heard:
                return
            if givers := self._downloads.givers(pull.model, now):
                if not pull.goes:
                    facts = {"forecast": PullForecast(), "sources": givers}
                    pull.state = pull.state.model_copy(update=facts)
                    return
                if sum(other.state.phase == "copying" for other in self._board.live()) >= AT_ONCE:
                    return
                self._downloads.hold(pull.model, now)
                self._client.log.info("copying a model from another node", model=pull.model)
                pull.state = PullState(model=pull.model, phase="copying", sources=givers)
                pull.standing.withdraw()
                return
        if pull.copies:
            if (why := why_no_giver(pull, now)) is not None:
                self._board.fail(pull, "no_giver", f"{pull.model} could not be copied: {why}")
        elif pull.goes and self._follows(pull, now):
            pass
        elif self._settings.offline:
            why = pull.standing.left
            text = (
                "offline = true: this node does not contact a hub, and no other node "
                f"offers {pull.model}"
            )
            self._board.fail(pull, "offline", f"{text}{why and f': {why}'}")
        elif not has_turn(pull, self._board.live()):
            pull.standing.withdraw()
        elif not pull.goes or self._claimed(pull, now):
            self._pull(pull)

    def _may_be_deleted(self, pull: Pull) -> bool:
        """Return whether the last scan of the disk found the model but began before this pull. The
        model may have been deleted since."""
        return pull.model in self._here.cards and self._scanned_at <= pull.asked_at

    def _release(self, pull: Pull, process: PullProcess, now: float) -> None:
        """Resume a held pull when it may run. If too many pulls are running, or another node
        fetches the model, the process of the held pull ends, and a new one starts later."""
        fetches, has_forecast = pull.released, pull.state.forecast is not None
        if pull.ended_at is not None or pull.came or not pull.goes or not (fetches or has_forecast):
            return
        if fetches and not yields(pull.state):
            return
        pull.state = pull.state.model_copy(update={"forecast": None})
        if self._follows(pull, now):
            pull.standing.give_way()
        elif fetches:
            return
        elif not has_turn(pull, self._board.live()):
            pull.standing.withdraw()
            pull.state = PullState(model=pull.model, phase="waiting")
        else:
            if self._claimed(pull, now):
                pull.begin()
                process.go()
            return
        process.stop()
        pull.process, pull.released = None, False

    def _follows(self, pull: Pull, now: float) -> bool:
        """Return whether to copy the model from another node that fetches it, and report that."""
        if pull.needs_hub or pull.no_copy or pull.model in self._here.cards:
            return False
        cards = self._downloads.elsewhere(now).cards
        state = self._claims.followed(pull.model, pull.standing, cards, now)
        if state is None and pull.process is None and (left := pull.standing.left):
            pull.state = PullState(model=pull.model, phase="waiting", note=left)
        pull.state = state or pull.state
        return state is not None

    def _claimed(self, pull: Pull, now: float) -> bool:
        """Return whether this node may fetch a model now. It must claim the model first and wait
        for claims of other nodes, unless there are none or only a hub can provide the model."""
        gives = bool(self._downloads.addresses)
        settled = pull.needs_hub or self._claims.claim(pull.standing, now, wall(), gives=gives)
        return settled or not self._downloads.elsewhere(now).cards

    def _pull(self, pull: Pull) -> None:
        card, settings = self._here.cards.get(pull.model), self._settings
        order = PullOrder(
            pull.model,
            pull.revision,
            str(settings.models),
            "" if card is None else card.path,
            holds=not pull.goes,
            float32=settings.float32,
            kv=settings.kv,
            layers=pull.layers,
            memory_bytes=settings.memory_bytes,
        )
        if pull.goes:
            pull.begin()
        layers = "all" if pull.layers is None else f"{pull.layers[0]} to {pull.layers[1] - 1}"
        self._client.log.info(
            "pulling a model", model=pull.model, revision=pull.revision, layers=layers
        )
        pull.process = PullProcess(order)

    def _follow_process(self, pull: Pull, process: PullProcess) -> None:
        has_ended, state = process.ended, process.state
        if state is not None and state.phase == "done":
            pull.came = True
            pull.state = state.model_copy(update={"phase": "publishing"})
        elif state is not None and state.phase == "failed":
            pull.state = state
            self._board.fail(pull, state.reason or "broken", state.message)
        elif has_ended:
            self._board.fail(pull, "broken", "the pull process ended; see `shoal logs worker`")
        elif state is not None:
            pull.state = state

    def _copied(self, pull: Pull) -> None:
        """Update a pull with the progress of the copy from other nodes. If the copy fails, fetch
        from the hub."""
        if pull.model in self._here.cards:
            self._downloads.let_go(pull.model)
            self._board.end(pull, "done")
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
                self._board.fail(pull, "disk_full", outcome.message)
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
