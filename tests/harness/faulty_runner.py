"""A runner process whose engine fails as told: `python -P -m tests.harness.faulty_runner`.

The engine is the fake one behind a real thread; SHOAL_TEST_FAULT says what goes wrong soon
after the first request has come: `wedge` (a step never ends), `raise`, or `slow` (a step takes
half a second). The load of `unloaded` does not end. With `ponder` no request ever becomes tokens;
`impatient` waits for a spec without a worker for no longer than `WAITS_S`. `stray` is a follower
with its real engine that once hears another token than its lead has sampled; `swollen` is one that
measures a quarter of its promise for each row, once it has had six; `hanging` is one whose engine,
and no more of it, hangs in a step. `heavy` has its real engine, each of whose steps takes at least
`HEAVY_S`, as a larger model's would.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from bus.process.identity import node_id
from bus.wire.messages.control import RunnerSpec
from bus.wire.messages.requests import GenerationRequest
from conf.settings import load_settings
from runner import __main__ as real
from runner import lifecycle
from runner.engine import (
    Engine,
    EngineFacts,
    EngineMemory,
    FollowingEngine,
    LoadProgress,
    RowId,
    StepPlan,
    StepResult,
)
from runner.group.lockstep import RankContext
from runner.lead.warm_up import LENGTHS
from runner.roles import lead
from runner.roles.role import Factories, Progressed
from runner.service import run_slot
from runner.text import ModelTokenizer, Text, TextWorks
from tests.harness.engine import FakeEngine, facts

STEPS_BEFORE = 2
PREPARES_S = 2.0
WAITS_S = 1.0
STRAYS_AFTER = 120
"""Steps: more than warming up takes, so that a request's token is misread."""
HEAVY_S = 0.03
SWELLS_AFTER = 10
"""Steps with six rows: a row of the warm-up leaves sooner."""


class FaultyEngine(FakeEngine):
    """The fake engine at a real pace, until it fails."""

    def __init__(self, facts: EngineFacts, fault: str) -> None:
        super().__init__(facts, has_followers=False)
        self.fault = fault
        self.pace = threading.Event()
        self.steps_left: int | None = None

    @property
    def fails(self) -> bool:
        return self.steps_left is not None and self.steps_left < 0

    def issue(self, plan: StepPlan) -> None:
        for spec in plan.admit:
            if spec.row > len(LENGTHS) and self.steps_left is None:
                self.steps_left = STEPS_BEFORE
        if self.steps_left is not None:
            self.steps_left -= 1
        if self.fault == "raise" and self.fails:
            raise RuntimeError("the device is lost")
        super().issue(plan)

    def read(self) -> StepResult:
        self.pace.wait(0.005)
        if self.fails and self.fault == "slow":
            self.pace.wait(0.5)
        if self.fails and self.fault == "wedge":
            self.pace.wait()
        return super().read()


def load_engine(spec: RunnerSpec, context: RankContext | None, progress: Progressed) -> Engine:
    if os.environ["SHOAL_TEST_FAULT"] == "unloaded":
        threading.Event().wait()
    progress(LoadProgress("ready", 1000, 1000))
    return FaultyEngine(facts(kv_bytes=1 << 20), os.environ["SHOAL_TEST_FAULT"])


class PonderingText(Text):
    """Comes to no end with a request."""

    def prepare(self, request: GenerationRequest, context_tokens: int) -> NoReturn:
        while True:
            threading.Event().wait(60.0)


def load_text(spec: RunnerSpec) -> TextWorks:
    made = PonderingText if os.environ["SHOAL_TEST_FAULT"] == "ponder" else Text
    return made(ModelTokenizer(Path(spec.path)))


def load_straying(
    spec: RunnerSpec, context: RankContext | None, progress: Progressed
) -> FollowingEngine:
    """The real engine; once it misreads the first token of a step."""
    engine = real.load_engine(spec, context, progress)
    read = engine.read
    misheard: list[int] = []

    def misread() -> StepResult:
        result = read()
        if misheard or result.step < STRAYS_AFTER or not result.tokens:
            return result
        misheard.append(result.step)
        first, *others = result.tokens
        return replace(result, tokens=(replace(first, token=first.token ^ 1), *others))

    engine.read = misread
    return engine


def load_swollen(
    spec: RunnerSpec, context: RankContext | None, progress: Progressed
) -> FollowingEngine:
    """The real engine; its memory is simulated: once it has had six rows for `SWELLS_AFTER` steps,
    there is room for four."""
    engine = real.load_engine(spec, context, progress)
    follow, memory = engine.follow, engine.memory
    rows: set[RowId] = set()
    steps_of_six = 0

    def following(plan: StepPlan, barred: tuple[RowId, ...]) -> None:
        nonlocal steps_of_six
        rows.difference_update(plan.release, plan.preempt)
        rows.update(one.row for one in plan.admit)
        if steps_of_six < SWELLS_AFTER:
            steps_of_six = steps_of_six + 1 if len(rows) >= 6 else 0
        follow(plan, barred)

    def simulated() -> EngineMemory:
        taken = len(rows) * spec.memory_limit_bytes // 4 if steps_of_six >= SWELLS_AFTER else 0
        return replace(memory(), active_bytes=taken, cache_bytes=0)

    engine.follow, engine.memory = following, simulated
    return engine


def load_hanging(
    spec: RunnerSpec, context: RankContext | None, progress: Progressed
) -> FollowingEngine:
    """The real engine; with a request's step it begins, and does not end."""
    engine = real.load_engine(spec, context, progress)
    follow = engine.follow

    def following(plan: StepPlan, barred: tuple[RowId, ...]) -> None:
        if plan.step >= STRAYS_AFTER:
            threading.Event().wait()
        follow(plan, barred)

    engine.follow = following
    return engine


def load_heavy(spec: RunnerSpec, context: RankContext | None, progress: Progressed) -> Engine:
    """The real engine, at the pace of a larger model."""
    engine = real.load_engine(spec, context, progress)
    issue, pace = engine.issue, threading.Event()

    def issued(plan: StepPlan) -> None:
        pace.wait(HEAVY_S)
        issue(plan)

    engine.issue = issued
    return engine


def following(load: Callable[..., FollowingEngine]) -> Factories:
    return Factories(
        load_engine=no_group,
        load_follower=load,
        load_embedder=no_group,
        load_text=real.load_text,
        load_inputs=no_group,
        form_group=real.form_group,
        open_exchanges=real.open_exchanges,
        open_maker=real.open_maker,
    )


def heavy() -> Factories:
    return replace(
        fake(),
        load_engine=load_heavy,
        load_text=real.load_text,
        vocabulary_digest=real.vocabulary_digest,
    )


FOLLOWERS = {"stray": load_straying, "swollen": load_swollen, "hanging": load_hanging}


def no_group(*_: object) -> NoReturn:
    raise AssertionError("this runner is alone")


def fake() -> Factories:
    return Factories(
        load_engine=load_engine,
        load_follower=no_group,
        load_embedder=no_group,
        load_text=load_text,
        load_inputs=no_group,
        form_group=no_group,
        open_exchanges=no_group,
        open_maker=no_group,
    )


def main() -> int:
    settings = load_settings()
    lead.PREPARES_S = PREPARES_S
    fault = os.environ["SHOAL_TEST_FAULT"]
    factories = heavy() if fault == "heavy" else fake()
    if fault == "impatient":
        vars(lifecycle)["SPEC_DEADLINE_S"] = WAITS_S
    return run_slot(
        "00",
        node=node_id(settings.paths.state),
        endpoints=settings.endpoints,
        log_level="info",
        keys=settings.key_files,
        factories=following(follower) if (follower := FOLLOWERS.get(fault)) else factories,
    )


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
