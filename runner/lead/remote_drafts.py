"""Talks to a proposer in another runner and to the scheduler: passes questions and drafts on.

Runs in the main thread. After each step, and after each draft, the scheduler says for which rows to
request drafts. Nothing waits for a draft.
"""

from __future__ import annotations

from collections.abc import Sequence

from bus.service import Shell
from bus.wire.ids import TokenId
from bus.wire.messages.control import ProposerPlace, RunnerSpec
from bus.wire.messages.requests import ProposerUse
from runner.lead.lead_loop import LeadLoop
from runner.serving import ProposerLink


class RemoteDrafts:
    """The drafts that another runner computes for this one, because this model's card names the
    other's model as its draft model."""

    def __init__(self, spec: RunnerSpec, shell: Shell, loop: LeadLoop) -> None:
        self._loop = loop
        self._now = shell.reactor.now
        self._link = ProposerLink(spec, shell, self)

    @property
    def use(self) -> ProposerUse:
        """Return the state of the proposer and the counts of drafts, for this runner's readings."""
        use, scheduler = self._link.use, self._loop.scheduler
        if scheduler is None:
            return use
        remote = scheduler.remote
        return use.model_copy(update={"questions": remote.count, "drafts": remote.useful})

    def loaded(self, vocabulary: str) -> None:
        """Record that the scheduler exists, so drafts can be requested. `vocabulary`: the digest of
        the model's tokens."""
        self._link.vocabulary = vocabulary
        self.usable(self._link.why_not)

    def go_to(self, place: ProposerPlace) -> None:
        """Use the proposer at this place from now on."""
        self._link.go_to(place)

    def watch(self, now: float) -> None:
        """Detect a lost proposer, and connect to it again after a pause; called a few times a
        second."""
        self._link.watch(now)

    def stepped(self) -> None:
        """Ask the proposer for the drafts that the rows need after a step."""
        if self._link.use.state != "ready":
            return
        with self._loop.scheduling() as scheduler:
            questions = scheduler.remote.due()
            ended_rows = scheduler.remote.ended_rows()
        for row in ended_rows:
            self._link.withdraw(row)
        now = self._now()
        dropped = [question.number for question in questions if not self._link.ask(question, now)]
        if dropped:
            with self._loop.scheduling() as scheduler:
                for number in dropped:
                    scheduler.remote.refuse(number, None)

    def close(self) -> None:
        self._link.close()

    # --- from the link ---------------------------------------------------------------------

    def usable(self, why_not: str) -> None:
        if self._loop.scheduler is not None:
            with self._loop.scheduling() as scheduler:
                scheduler.remote.use(why_not)

    def drafted(self, number: int, tokens: Sequence[TokenId]) -> None:
        with self._loop.scheduling() as scheduler:
            scheduler.remote.arrive(number, tokens)
        self.stepped()

    def undrafted(self, number: int, has: int | None) -> None:
        with self._loop.scheduling() as scheduler:
            scheduler.remote.refuse(number, has)
