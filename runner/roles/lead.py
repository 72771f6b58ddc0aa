"""Talks to the engine and text threads, and to gateways through `serving`: schedules and serves.

This is the role of rank 0 of a group, and of a single runner. The lead makes the group form and the
engine load, warms up and serves. It also watches the engine and the other ranks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bus.models.kv import KvKey, RunNews, RunQuestion
from bus.wire.kv import RunSought, SeekRun
from bus.wire.messages.control import ProposerPlace, RunnerSpec
from bus.wire.messages.readings import RunnerReading
from runner.engine import Engine, EngineFacts, MemoryLook
from runner.lead import (
    LeadLoop,
    MemoryWatch,
    OpenText,
    RemoteDrafts,
    RowProposer,
    Stepped,
    TextResponder,
)
from runner.lifecycle import PREPARES_S, step_deadline_s
from runner.roles.reports import RunnerMeter
from runner.roles.role import (
    TEXT_THREAD,
    Factories,
    Progressed,
    RoleParts,
    ServingRole,
    note_steps,
    watchdog,
)
from runner.roles.startup import Startup
from runner.schedule import Scheduler, ScheduleSettings
from runner.text import TextWorks

PROPOSERS = {"draft_model": "draft model", "mtp": "MTP head", "block": "block drafter"}


class LeadRole(ServingRole):
    """Schedules requests, serves gateways, and leads the other ranks: the role of rank 0, and of a
    single runner."""

    def __init__(self, parts: RoleParts) -> None:
        spec, shell, reactor = parts.spec, parts.shell, parts.shell.reactor
        self._loop = LeadLoop(
            self._load_engine,
            self._new_scheduler,
            lambda news: reactor.call(partial(self._stepped, news)),
            MemoryWatch(spec.memory_limit_bytes),
        )
        self._loop.say = lambda text: reactor.call(partial(self._log.warning, text))
        self._loop.seek = lambda question, key: reactor.call(partial(self._seek, question, key))
        super().__init__(parts, self._loop)
        if self._channel is not None:
            self._channel.on_memory = self._measured
            self._loop.spans = self._channel.context.spans
        self._why_no_drafts = self._no_proposer = ""
        self._startup = Startup(parts, self._loop, self._opened)
        self._responder = self._server.responder = TextResponder(
            self._server, shell, loop=self._loop, text=self._startup.text
        )
        if self._channel is not None:
            self._responder.ask_ranks = self._ask_ranks
        self._proposer = self._server.proposals = RowProposer(
            self._server, shell, self._loop, partial(self._factories.vocabulary_digest, spec)
        )
        has_model = spec.draft is not None and spec.draft.drafter == "draft_model"
        self._remote = RemoteDrafts(spec, shell, self._loop) if has_model else None
        self._meter = RunnerMeter(spec, shell.speaker, self._server.totals, reactor.now())
        self._preparing = watchdog(parts.spec, lambda: self._startup.text.busy_since, TEXT_THREAD)
        self._stepping = watchdog(parts.spec, lambda: self.status.busy_since)

    def watch(self, now: float) -> None:
        """Check as every serving role does; also leave if a step or the preparation of a request
        takes too long."""
        super().watch(now)
        facts, is_loaded = self._loop.facts, self._loop.scheduler is not None
        if (draft := self._spec.draft) and facts and is_loaded and not self._no_proposer:
            self._no_proposer = getattr(facts, f"no_{draft.drafter}")
            self._warn_of_proposer()
        if self._remote is not None:
            self._remote.watch(now)
        note_steps(self._recorder, self.status, self._channel)
        if self._preparing.passed(now, lambda: PREPARES_S) is not None:
            what = f"preparing a request took more than {PREPARES_S:g} s"
            self._stuck(what, thread=TEXT_THREAD)
        limit_s = self._stepping.passed(now, self._step_limit_s)
        if limit_s is not None:
            self._stuck(f"step {self.status.steps_done + 1} took more than {limit_s:.1f} s")

    def _warn_of_proposer(self) -> None:
        """Log that the proposer of the card is not used, and show it with the model's facts."""
        if self._no_proposer and self._spec.draft is not None:
            name = PROPOSERS[self._spec.draft.drafter]
            self._log.warning(f"the {name} is not used", why=self._no_proposer)
            self._meter.facts_found = {**self._meter.facts_found, name: self._no_proposer}

    def reading(self, now: float) -> RunnerReading | None:
        """Return the current reading of this runner, with rates since the previous reading."""
        load, phase = self._loop.scheduler_load(), self._host.phase
        reading = self._meter.reading(phase, self.status, load, self.open_requests, now)
        if self._remote is None:
            return reading
        return reading.model_copy(update={"proposer": self._remote.use})

    def go_to_proposer(self, place: ProposerPlace) -> None:
        """Use the draft model at this place, unless the message is for another runner."""
        spec = self._spec
        is_mine = (spec.instance, spec.generation) == (place.instance, place.generation)
        if self._remote is not None and is_mine:
            self._remote.go_to(place)

    def stop(self, timeout_s: float) -> None:
        if self._remote is not None:
            self._remote.close()
        super().stop(timeout_s)

    def _step_limit_s(self) -> float:
        learning = self._host.phase == "warming"
        return step_deadline_s(self._loop.expected_s(), 0 if learning else self.status.steps_done)

    def _ask_ranks(self, text: OpenText) -> None:
        """Ask every other rank to send the gateway its spans of a traced request."""
        if text.trace is not None:
            step, tell = self.status.steps_done, partial(self._server.send, text.request.peer)
            self._others.ask_spans(text.request.request_id, step, tell)

    def _seek(self, question: RunQuestion, key: KvKey) -> None:
        """Have the worker ask other nodes for KV of a prompt."""
        self._host.tell(
            SeekRun(
                model=self._spec.model,
                prompt=question.name,
                adapter=question.adapter,
                folder=key.folder,
                how=key.how,
                tokens=question.tokens,
                have=question.have,
                hashes=question.hashes,
                saves_s=question.saves_s,
                read_bytes_per_s=question.read_bytes_per_s,
            )
        )

    def sought(self, answer: RunSought) -> None:
        """Pass the worker's answer about KV on other nodes to the scheduler."""
        if self._loop.scheduler is None:
            return
        news = RunNews(answer.prompt, answer.what, answer.wait_s, answer.size_bytes)
        with self._loop.scheduling() as scheduler:
            if scheduler.disk is not None:
                scheduler.disk.take_news(news, self._reactor.now())

    # --- from the engine's thread ----------------------------------------------------------

    def _new_scheduler(self, facts: EngineFacts) -> Scheduler:
        draft = self._spec.draft
        if draft is not None and draft.why_not:
            facts = replace(facts, **{f"no_{draft.drafter}": draft.why_not})
        scheduler = Scheduler(facts, _settings(self._spec, self._factories))
        self._no_proposer = "" if draft is None else scheduler.intake.why_not(draft.drafter)
        self._why_no_drafts = scheduler.intake.why_no_drafts
        return scheduler

    def _load_engine(self, progress: Progressed) -> Engine:
        context = None if self._channel is None else self._channel.context
        return self._factories.load_engine(self._spec, context, progress)

    def _loaded(self) -> None:
        facts = self._loop.facts
        assert facts is not None, "the engine is not loaded"
        self.described = {
            **self._meter.loaded(facts),
            "no_drafts": self._why_no_drafts,
            "no_proposer": self._no_proposer,
        }
        if self._remote is not None:
            self._remote.loaded(self._factories.vocabulary_digest(self._spec))
        self._warn_of_proposer()
        self._note_kv(self._meter.kv)
        self._host.signal("loaded")
        self._startup.loaded(facts)

    def _measured(self, rank: int, look: MemoryLook) -> None:
        """Pass another rank's memory measurement to the scheduler."""
        with self._loop.scheduling() as scheduler:
            scheduler.pressure.take(rank, look)

    def _opened(self, works: TextWorks) -> None:
        self._responder.works = works
        self._meter.facts_found = {**works.facts, **self._meter.facts_found}
        self.described = {**self.described, **works.facts}

    def _stepped(self, news: Stepped) -> None:
        if (phase := self._host.phase) == "ended":
            return
        self._responder.stepped(news)
        if self._proposer.blocks:
            self._proposer.stepped(news)
        if self._remote is not None:
            self._remote.stepped()
        if phase == "warming" and self._host.phase == phase:
            self._startup.stepped(news)


def _settings(spec: RunnerSpec, factories: Factories) -> ScheduleSettings:
    return ScheduleSettings(
        max_rows=spec.max_rows,
        max_waiting=spec.max_waiting,
        prefill_share=spec.prefill_share,
        prefix_bytes=spec.prefix_cache_bytes,
        paused_limit_s=spec.drop_idle_s,
        speculate=spec.speculate or factories.speculate,
        parity_is_exact=factories.parity == "exact",
        has_followers=spec.size > 1,
    )
