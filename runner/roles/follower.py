"""Talks to its lead and to its engine thread: computes the lead's plans.

This is the role of every rank but 0. A follower serves no gateway and decides nothing. It is ready
when the ranks have agreed on their common facts. It leaves when the lead leaves or is silent, and
when its own engine fails. The lead enforces the time limit of steps, because it notices first.
Asked to drain, the follower waits for the lead, which ends after its requests.
"""

from __future__ import annotations

from bus.process.clock import wall
from bus.process.memory import keep
from bus.wire.ids import RequestId
from bus.wire.messages.readings import RunnerReading
from runner.group.lockstep import SharedPlan
from runner.lead import MemoryWatch
from runner.lifecycle import FIRST_STEP_DEADLINE_S, lost_peer
from runner.recorder import ServedTotals
from runner.roles.follower_loop import FollowerLoop
from runner.roles.model_thread import LoadFailed, ThreadNews
from runner.roles.reports import RunnerMeter
from runner.roles.role import Role, RoleParts, note_steps, watchdog

READ_WITHIN_S = 0.5
LOOKS_AGAIN_S = 0.01
"""Interval at which a follower checks whether it has read the last step of a request, because it
reads that step slightly after the lead."""


class FollowerRole(Role):
    """The role of every rank except rank 0: it computes what the lead plans."""

    def __init__(self, parts: RoleParts) -> None:
        self._loop = FollowerLoop(
            lambda progress: parts.factories.load_follower(
                parts.spec, self._others.context, progress
            ),
            MemoryWatch(parts.spec.memory_limit_bytes),
            lambda look: parts.shell.reactor.call(lambda: self._others.tell_memory(look)),
        )
        super().__init__(parts, self._loop)
        self._loop.spans = self._others.context.spans
        self._others.on_ask = self._trace
        self._stepping = watchdog(parts.spec, lambda: self.status.busy_since)
        now, speaker = parts.shell.reactor.now(), parts.shell.speaker
        self._meter = RunnerMeter(parts.spec, speaker, ServedTotals(used_at=now), now)

    @property
    def is_empty(self) -> bool:
        """Return False: a follower waits for its lead."""
        return False

    def begin(self) -> None:
        """Record that this rank waits for the lead, which tells all ranks to form the group."""
        lead = self._others.group.ranks[0]
        self._recorder.note(wall(), "connect_group", lead=lead.node)

    def watch(self, now: float) -> None:
        """End the runner if one step took longer than any step may."""
        super().watch(now)
        note_steps(self._recorder, self.status, self._channel)
        if self._stepping.passed(now, lambda: FIRST_STEP_DEADLINE_S) is not None:
            step = self.status.steps_done + 1
            self._stuck(f"step {step} took more than {FIRST_STEP_DEADLINE_S:.0f} s")

    def reading(self, now: float) -> RunnerReading:
        """Return the current reading of this rank: its progress and its memory."""
        return self._meter.reading(self._host.phase, self.status, None, 0, now)

    def plan(self, shared: SharedPlan) -> None:
        """Pass the lead's next plan to the engine's thread."""
        self._loop.give(shared)

    def _trace(self, request_id: RequestId, step: int) -> None:
        """Send the lead's gateway this rank's spans of a traced request, when the result of `step`
        is read or soon after."""
        self._tell_spans(request_id, step, self._reactor.now() + READ_WITHIN_S)

    def _tell_spans(self, request_id: RequestId, step: int, until: float) -> None:
        if self.status.steps_done < step and self._reactor.now() < until:
            self._reactor.later(LOOKS_AGAIN_S, lambda: self._tell_spans(request_id, step, until))
            return
        self._others.tell_spans(request_id)

    def _take_news(self, news: ThreadNews) -> None:
        if isinstance(news, LoadFailed):
            self._others.end(news.message, is_final=not lost_peer(news.message))
        super()._take_news(news)

    def _loaded(self) -> None:
        facts = self._loop.facts
        if facts is not None:
            self.described = self._meter.loaded(facts)
            self._note_kv(self._meter.kv)
        keep()
        self._recorder.note(wall(), "idle")
        super()._loaded()
