"""Schedule all rows of a runner, from submission to their end.

Pure: time arrives as `now`; callers hold one lock. The scheduler runs at most one step ahead:
`plan` n + 1 may be called before `commit` n. Promises:
- A row ends exactly once (`RowFinished` or `RowFailed`), and its tokens come in order before that.
- No plan needs more KV memory than allowed, by formula.
- The requester with the fewest rows is served next. It waits at most `give_way_s` for a
requester with at least two rows more.
- A row that waited `promote_after_s` precedes all that did not, so none starves.
- Preemption never loses or changes a token.
- While a rank measures memory above its limit, no row enters, and rows end one by one with their
text so far.
- If the queue is full, a request that has not begun is handed back in favour of one with a better
standing. Its rows are removed without an end event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from bus.wire.errors import TIMED_OUT, FailReason, FinishReason, Refusal
from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.tokens import TRIAL_TOKENS
from bus.wire.shares import Sharer
from runner.engine import EngineFacts, RowId, SampledToken, StepPlan, StepResult
from runner.schedule.budget import StepTime
from runner.schedule.costs import GroupSize
from runner.schedule.drafting import RemoteQuestions
from runner.schedule.intake import Arrival, Intake
from runner.schedule.plan import plan_step
from runner.schedule.prefixes import DiskFigures, TokenChain, kept_apart
from runner.schedule.rows import (
    Row,
    RowEvent,
    RowFailed,
    RowFinished,
    RowKey,
    RowPrefilled,
    RowScored,
    RowToken,
)
from runner.schedule.speculation import asking_rows, count_drafts, room_of, waits_for_tokens
from runner.schedule.table import RowTable, ScheduleSettings
from runner.text import PreparedRequest

STEPS_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Placed:
    """The answer if the scheduler accepts a request. `position` requests are ahead of it (0: it is
    running or next). The waiting request `displaced` was removed to free a place for it."""

    position: int
    displaced: RequestId | None = None


@dataclass(frozen=True, slots=True)
class SchedulerLoad:
    """The scheduler's load, as published in readings."""

    running: int = 0
    waiting_requests: int = 0
    best_waiting_priority: int | None = None
    best_running_priority: int | None = None
    kv_bytes: int = 0
    kv_limit_bytes: int = 0
    prefix_bytes: int = 0
    preemptions: int = 0
    memory_ends: int = 0
    row_s: float = 0.0
    """The measured seconds of a step of one row; 0: not measured."""
    disk: DiskFigures = field(default_factory=DiskFigures)


class Scheduler:
    """Schedules all rows of a runner, as the module describes. `facts` come from the loaded model,
    `settings` from the operator. `intake` refuses requests and frees places in the queue.
    `pressure` has the memory that ranks measured; if it is too much, the next plan may end a row.
    `disk` decides about prefixes on disk; None if there is no disk for them. `remote` asks another
    runner for drafts."""

    def __init__(self, facts: EngineFacts, settings: ScheduleSettings | None = None) -> None:
        self._table = RowTable(facts, settings or ScheduleSettings())
        rows = partial(asking_rows, self._table)
        self.remote = RemoteQuestions(facts.vocabulary, self._table.live, rows)
        self.intake = Intake(self._table, self.remote)
        self.pressure = self._table.pressure
        self.disk = self._table.disk
        self._serial = 0
        self._planned_at = self._committed_at = float("-inf")

    # --- what is asked of it ----------------------------------------------------------

    def submit(
        self,
        prepared: PreparedRequest,
        *,
        seeds: Sequence[int],
        now: float,
        deadline_at: float | None = None,
        sharer: Sharer = (),
        waited_s: float = 0.0,
        returns: bool = False,
        made: Sequence[Sequence[TokenId]] = (),
        suspect: bool = False,
    ) -> Placed | Refusal:
        """Accept the request with one row per choice, or return the refusal. `seeds` has one seed
        per choice.

        `waited_s` is its waiting time elsewhere. `returns`: the gateway accepts the request back as
        long as it has not begun. Rows resume after the tokens `made` at another runner. `suspect`:
        no other row begins until the request has made some tokens.
        """
        table, request_id = self._table, prepared.request_id
        refusal = self.intake.unfit(prepared, max(map(len, made), default=0))
        if refusal is not None:
            return refusal
        since_at = now - waited_s
        coming = Arrival(request_id, sharer, prepared.request.priority, since_at)
        displaced = self.intake.make_place(coming, (), now)
        if isinstance(displaced, Refusal):
            return displaced
        rules = table.draft_rules[prepared.request.speculate or table.settings.speculate]
        seed = kept_apart(prepared.request)
        prompt = TokenChain(prepared.tokens, table.settings.block_tokens, seed=seed)
        rows: list[Row] = []
        before = made or [()] * len(seeds)
        for choice, seed, tokens in zip(prepared.choices, seeds, before, strict=True):
            self._serial += 1
            row = Row(
                key=RowKey(request_id, choice.choice),
                prepared=prepared,
                seed=seed,
                prompt=prompt,
                submitted_at=since_at,
                serial=self._serial,
                rules=rules,
                deadline_at=deadline_at,
                waiting_since=now,
                waited_s=waited_s,
                sharer=sharer,
                returns=returns,
                thinking=None if prepared.limit is None else prepared.limit.count(),
            )
            if tokens:
                row.go_on_from(tokens)
            row.trial_ends = len(tokens) + TRIAL_TOKENS if suspect else 0
            rows.append(row)
        table.open(request_id, rows)
        queue = table.queue()
        return Placed(queue.index(request_id) if request_id in queue else 0, displaced)

    def cancel(self, request_id: RequestId, now: float) -> list[RowEvent]:
        """End every row of the request as `cancelled`; an unknown request is ignored."""
        rows = list(self._table.requests.get(request_id, ()))
        return [self._finish(row, "cancelled", now) for row in rows]

    def complete(self, key: RowKey, now: float) -> list[RowEvent]:
        """End the row with finish reason `stop`, because a stop string completed its text."""
        row = self._table.rows.get(key)
        return [] if row is None else [self._finish(row, "stop", now)]

    def pause(self, key: RowKey, now: float) -> None:
        """Stop decoding the row: its client has no credit left."""
        row = self._table.rows.get(key)
        if row is not None and row.paused_at is None:
            row.paused_at = now

    def resume(self, key: RowKey) -> None:
        """Decode the row again: its client has credit."""
        row = self._table.rows.get(key)
        if row is not None:
            row.paused_at = None

    def forget_costs(self) -> None:
        """Discard all costs that were learned from measured steps, because an exceptional step
        distorted them."""
        self._table.timekeeper.forget()

    # --- the clock and the step --------------------------------------------------------

    def advance(self, now: float) -> list[RowEvent]:
        """Apply deadlines, client timeouts and ageing; return the events."""
        events: list[RowEvent] = []
        settings = self._table.settings
        for row in list(self._table.rows.values()):
            if row.deadline_at is not None and now >= row.deadline_at:
                events.append(self._fail(row, "deadline", TIMED_OUT, now))
            elif row.paused_at is not None and now - row.paused_at >= settings.paused_limit_s:
                message = f"the client read nothing for {settings.paused_limit_s:g} s"
                events.append(self._fail(row, "deadline", message, now))
            elif row.status == "waiting" and not row.promoted and row.paused_at is None:
                row.promoted = row.waits_s(now) >= settings.promote_after_s
        return events

    def plan(self, now: float) -> tuple[StepPlan | None, list[RowEvent]]:
        """Return the next step and events. The step is None if there is no work, `STEPS_AHEAD`
        steps are unread, or the previous one must be read first."""
        table = self._table
        thinking = (row for row in table.live.values() if row.thinking is not None)
        if len(table.issued) >= STEPS_AHEAD or any(row.must_be_read for row in thinking):
            return None, []
        are_drafted = not any(row.rules.why_not for row in table.live.values())
        if are_drafted and table.issued and waits_for_tokens(table):
            return None, []
        self._planned_at = now
        plan, events = plan_step(self._table, now)
        if plan is None and self._table.retiring:
            plan, more = plan_step(self._table, now)
            events += more
        return plan, events

    def commit(self, result: StepResult, now: float) -> list[RowEvent]:
        """Process the result of the oldest unread step. Tokens of rows that ended meanwhile are
        dropped; a row with neither token nor failure fails."""
        table = self._table
        issued = table.read(result)
        # The time of a step begins when the previous step was read, or when it was planned if
        # the engine was idle.
        took_s = now - max(issued.now, self._committed_at)
        self._committed_at = now
        width = 1 + max((guess.length for guess in issued.guesses.values()), default=0)
        step = StepTime(len(issued.decode), tuple(issued.groups), issued.prefill_s, took_s, width)
        table.timekeeper.took(step, idle_next=not table.issued)
        events: list[RowEvent] = []
        for row, done in issued.progress:
            if row.status != "ended" and not row.made and done <= row.prompt.length:
                events.append(RowPrefilled(row.key, done, row.prompt.length))
        for scores in result.scored:
            row = issued.scored.get(scores.row)
            if row is not None and row.status != "ended" and (new := row.take_scores(scores)):
                events.append(RowScored(row.key, new))
        owed, taken = dict(issued.samples), dict[RowId, int]()
        for sampled in result.tokens:
            row = owed.pop(sampled.row, None)
            if row is not None:
                row.in_flight -= 1
            elif sampled.row in issued.guesses:
                row = issued.samples[sampled.row]
                row.computed += 1
            if row is not None and row.status != "ended":
                taken[sampled.row] = taken.get(sampled.row, 0) + 1
                self._take(row, sampled, now, events, is_verified=bool(issued.guesses))
        if issued.guesses:
            count_drafts(self._table, issued, result, taken)
        if result.implied:
            for row in issued.samples.values():
                if row.drafts is not None:
                    row.drafts.imply(result.implied)
        for failure in result.failures:
            row = owed.pop(failure.row, None) or table.live.get(failure.row)
            if row is not None and row.status != "ended":
                events.append(self._fail(row, failure.reason, failure.message, now))
        for row in owed.values():
            row.in_flight -= 1
            if row.status != "ended":
                events.append(self._fail(row, "internal", "the engine returned no token", now))
        return events

    # --- what others may know -----------------------------------------------------------

    @property
    def unread(self) -> int:
        """Return the number of issued steps whose results are not committed yet."""
        return len(self._table.issued)

    @property
    def is_empty(self) -> bool:
        """Return whether no row is waiting or running and the engine holds none."""
        table = self._table
        return not (table.rows or table.live or table.issued)

    def expected_s(self) -> float:
        """Return the predicted seconds of all unread steps, for the watchdog."""
        return sum(issued.decode_s + issued.prefill_s for issued in self._table.issued)

    def prefill_s(self, tokens: int) -> float:
        """Return the predicted seconds of computing a prompt of `tokens` tokens without other
        work."""
        return self._table.costs.prefill_s(GroupSize(tokens))

    def wake_at(self) -> float | None:
        """Return the instant at which `advance` or `plan` should be called even if nothing happens
        before; None: never."""
        settings = self._table.settings
        instants: list[float] = []
        disk = self._table.disk
        if disk is not None and (disk.reads or disk.seeks.open):
            read_by = disk.wake_at()
            instants += [] if read_by is None else [read_by]
        for row in self._table.rows.values():
            if row.deadline_at is not None:
                instants.append(row.deadline_at)
            if row.paused_at is not None:
                instants.append(row.paused_at + settings.paused_limit_s)
                grace_ends_at = row.paused_at + settings.paused_grace_s
                if row.row_id is not None and grace_ends_at > self._planned_at:
                    instants.append(grace_ends_at)
        return min(instants, default=None)

    def load(self) -> SchedulerLoad:
        table = self._table
        waiting = [row for row in table.rows.values() if row.status == "waiting"]
        return SchedulerLoad(
            running=len(table.live) - len(table.retiring),
            waiting_requests=len({row.key.request_id for row in waiting}),
            best_waiting_priority=min(
                (row.prepared.request.priority for row in waiting), default=None
            ),
            best_running_priority=min(
                (row.prepared.request.priority for row in table.live.values()), default=None
            ),
            kv_bytes=table.live_bytes(),
            kv_limit_bytes=table.kv_bytes,
            prefix_bytes=table.prefixes.used_bytes,
            preemptions=table.preemptions,
            memory_ends=table.pressure.ended,
            row_s=table.costs.row_s,
            disk=DiskFigures() if table.disk is None else table.disk.counts(),
        )

    def validate_state(self) -> None:
        """Raise AssertionError if an invariant is broken (tests call this after each step)."""
        self._table.validate_state()

    # --- inside ---------------------------------------------------------------------------

    def _take(
        self,
        row: Row,
        sampled: SampledToken,
        now: float,
        events: list[RowEvent],
        *,
        is_verified: bool,
    ) -> None:
        if row.scores:
            message = f"the engine scored {row.scored} of {row.prompt.length} prompt tokens"
            events.append(self._fail(row, "internal", message, now))
            return
        if not row.prepared.max_tokens:
            # The request wants no output, so the token after its prompt is dropped.
            row.first_token_at = now
            events.append(self._finish(row, "length", now))
            return
        if row.drafts is not None:
            row.drafts.take(
                sampled.token,
                room_of(self._table, row),
                is_verified=is_verified,
                is_alone=len(self._table.live) == 1,
            )
        row.made.append(sampled.token)
        if row.thinking is not None:
            row.thinking.take(sampled.token)
        if row.first_token_at is None:
            row.first_token_at = now
        events.append(RowToken(row.key, sampled))
        if sampled.token in row.prepared.stop_token_ids:
            events.append(self._finish(row, "stop", now))
        elif len(row.made) >= row.prepared.max_tokens:
            events.append(self._finish(row, "length", now))

    def _finish(self, row: Row, finish: FinishReason, now: float) -> RowFinished:
        row.finish = finish
        self._table.end(row)
        self.intake.ended(row)
        return RowFinished(row.key, finish, row.cost(now))

    def _fail(self, row: Row, reason: FailReason, message: str, now: float) -> RowFailed:
        self._table.end(row)
        self.intake.ended(row)
        return RowFailed(row.key, reason, message, row.cost(now))
