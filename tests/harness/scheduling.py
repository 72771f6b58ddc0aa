"""A runner's engine loop in virtual time: scheduler and fake engine, one step ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import GenerationRequest, TextPrompt
from bus.wire.shares import Sharer
from runner.engine import EngineFacts, StepPlan
from runner.schedule import (
    Placed,
    RowEvent,
    RowFailed,
    RowFinished,
    RowKey,
    RowToken,
    Scheduler,
    ScheduleSettings,
)
from runner.text import PreparedChoice, PreparedRequest
from tests.harness.engine import FakeEngine, StepCosts


def prepared(
    name: str,
    tokens: list[int],
    *,
    max_tokens: int = 8,
    n: int = 1,
    priority: int = 10,
    stops: frozenset[int] = frozenset(),
) -> PreparedRequest:
    request = GenerationRequest(
        request_id=RequestId(name),
        model=ModelId("fake"),
        prompt=TextPrompt(text=""),
        n=n,
        priority=priority,
    )
    return PreparedRequest(
        request=request,
        tokens=tuple(TokenId(token) for token in tokens),
        max_tokens=max_tokens,
        stop_token_ids=stops,
        choices=tuple(PreparedChoice(choice, None) for choice in range(n)),
    )


@dataclass
class Loop:
    """Drives a scheduler as the engine's thread does; `now` advances by what steps cost."""

    facts: EngineFacts
    settings: ScheduleSettings = field(default_factory=ScheduleSettings)
    costs: StepCosts = field(default_factory=StepCosts)
    now: float = 0.0
    made: dict[RowKey, list[int]] = field(default_factory=dict)
    token_at: dict[RowKey, list[float]] = field(default_factory=dict)
    ends: dict[RowKey, RowFinished | RowFailed] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    on_step: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.engine = FakeEngine(self.facts, self.costs)
        self.scheduler = Scheduler(self.facts, self.settings)

    def submit(
        self,
        request: PreparedRequest,
        *,
        deadline_at: float | None = None,
        sharer: Sharer = (),
        waited_s: float = 0.0,
        returns: bool = False,
        suspect: bool = False,
    ) -> Placed | Refusal:
        answer = self.scheduler.submit(
            request,
            seeds=[100 + choice.choice for choice in request.choices],
            now=self.now,
            deadline_at=deadline_at,
            sharer=sharer,
            waited_s=waited_s,
            returns=returns,
            suspect=suspect,
        )
        self.scheduler.validate_state()
        return answer

    def take(self, events: list[RowEvent]) -> None:
        for event in events:
            if isinstance(event, RowToken):
                assert event.key not in self.ends, "no token comes after the end"
                self.made.setdefault(event.key, []).append(event.sampled.token)
                self.token_at.setdefault(event.key, []).append(self.now)
            elif isinstance(event, RowFinished | RowFailed):
                assert event.key not in self.ends, "a row ends once"
                self.ends[event.key] = event

    def turn(self) -> bool:
        """One turn of the loop; False when there is nothing to do now."""
        self.take(self.scheduler.advance(self.now))
        plan, events = self.scheduler.plan(self.now)
        self.take(events)
        self.scheduler.validate_state()
        if plan is not None:
            self.engine.issue(plan)
            self.plans.append(plan)
        if self.scheduler.unread == 2 or (plan is None and self.scheduler.unread):
            result = self.engine.read()
            self.now += result.step_s
            self.take(self.scheduler.commit(result, self.now))
            self.scheduler.validate_state()
            if self.on_step is not None:
                self.on_step()
            return True
        return plan is not None

    def run(self, most_turns: int = 20_000) -> None:
        """Until nothing is left to do; time jumps where only time can help."""
        for _ in range(most_turns):
            if not self.turn():
                wake_at = self.scheduler.wake_at()
                if wake_at is None:
                    return
                self.now = max(self.now, wake_at)
        raise AssertionError(f"not idle after {most_turns} turns")
