"""Rows with and without drafts get the same tokens, whatever happens around them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.errors import Refusal
from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.requests import SPECULATE, Speculate
from runner.engine import RowId
from runner.schedule.drafting import EXACT_TOKENS
from runner.schedule.rows import RowFailed, RowFinished, RowKey
from runner.schedule.table import RowTable, ScheduleSettings
from runner.text import PreparedRequest
from tests.harness.engine import FakeEngine, FakeRow, StepCosts, drafted_tokens, facts
from tests.harness.scheduling import Loop, prepared

ON = ScheduleSettings(speculate="ngram")
AUTO = ScheduleSettings(speculate="auto")
EXACT: dict[str, Any] = {"dtype": "float32", "drafts_exactly": True}
PHRASE = [5, 9, 12, 7, 30, 31, 32, 8, 40, 41]


@dataclass
class Copier(FakeEngine):
    """Repeats its prompt, with a wrong token now and then: a text that drafts help with."""

    every: int = 7
    free: frozenset[int] = frozenset()
    """Rows, counted from 0, that do not repeat anything."""

    def choose(self, row: FakeRow) -> TokenId:
        if row.spec.row - 1 in self.free:
            return super().choose(row)
        made, prompt = len(row.tokens) - row.prompt_tokens, row.spec.tokens[: row.prompt_tokens]
        if self.every and made % self.every == self.every - 1:
            return TokenId(50 + (made * 7 + row.spec.seed) % 13)
        return prompt[made % len(prompt)]


SHARED = ((2, ((33, 5.0),)), (4, ((33, 7.0),)))
"""What steps of two and of four rows cost; 33 columns cost little."""


def loop_of(how: ScheduleSettings, every: int = 7, **costs: float) -> Loop:
    model = replace(facts(verifies=True, shared_draft_costs=SHARED), extra=EXACT)
    loop = Loop(model, how, StepCosts(**costs))
    loop.engine = Copier(loop.facts, loop.costs, every=every)
    return loop


def key(name: str) -> RowKey:
    return RowKey(RequestId(name), 0)


def test_a_copied_text_takes_fewer_steps_and_is_the_same() -> None:
    made, steps, ends = [], [], []
    for how in (ScheduleSettings(), ON):
        loop = loop_of(how, every=20)
        loop.submit(prepared("a", PHRASE * 3, max_tokens=120))
        loop.run()
        made.append(loop.made[key("a")])
        steps.append(len(loop.plans))
        ends.append(loop.ends[key("a")])
    assert made[0] == made[1] and len(made[0]) == 120
    assert steps[1] < 0.5 * steps[0]
    plain, drafted = ends
    assert isinstance(plain, RowFinished) and isinstance(drafted, RowFinished)
    assert plain.cost.completion_tokens == drafted.cost.completion_tokens
    counts = drafted.cost.drafts
    assert 0 < counts.accepted <= counts.drafted and counts.drafts > 0
    assert counts.drafters == {"ngram": (counts.drafts, counts.drafted, counts.accepted)}
    assert plain.cost.drafts.drafts == 0


def test_rows_that_decode_together_take_fewer_steps_and_are_the_same() -> None:
    made, steps = [], []
    for how in (ScheduleSettings(), AUTO, ON):
        loop = loop_of(how, every=20)
        for at in range(4):
            text = [(token + at) % 60 + 2 for token in PHRASE]
            loop.submit(prepared(f"r{at}", text * 3, max_tokens=120 + at))
        loop.run()
        made.append(loop.made)
        steps.append(len(loop.plans))
        together = any(plan.drafts for plan in loop.plans if len(plan.decode) > 1)
        assert together == (how == ON)
    assert made[0] == made[1] == made[2]
    assert steps[2] < 0.6 * steps[1] < 0.7 * steps[0]
    for at in range(4):
        end = loop.ends[key(f"r{at}")]
        assert isinstance(end, RowFinished)
        assert 0 < end.cost.drafts.accepted <= end.cost.drafts.drafted
        assert end.cost.completion_tokens == 120 + at


def test_rows_beside_a_prompt_decode_plainly_and_are_drafted_after_it() -> None:
    loop = loop_of(replace(ON, prefill_tokens=16, first_chunk_tokens=16), every=0)
    for at in range(2):
        loop.submit(prepared(f"r{at}", [token + at for token in PHRASE] * 3, max_tokens=300))
    while sum(bool(plan.drafts) for plan in loop.plans) < 3:
        loop.turn()
    loop.submit(prepared("late", [2 + n * 7 % 61 for n in range(200)], max_tokens=40))
    before = len(loop.plans)
    while key("late") not in loop.made:
        loop.turn()
    chunks = [at for at, plan in enumerate(loop.plans) if plan.prefill and at >= before]
    assert len(chunks) > 3
    # Between two chunks as well: a step with drafts would delay the prompt.
    assert not any(plan.drafts for plan in loop.plans[chunks[0] : chunks[-1] + 1])
    after = len(loop.plans)
    loop.run()
    assert any(plan.drafts for plan in loop.plans[after:])


def test_a_row_of_free_text_hardly_waits_for_neighbours_that_copy() -> None:
    """It may lose a few steps, and a twentieth."""
    costs = {"decode_fixed_s": 0.01, "decode_row_s": 0.0, "column_s": 0.0005}
    took = []
    for how in (ScheduleSettings(), ON):
        loop = Loop(
            facts(verifies=True, shared_draft_costs=((4, ((33, 7.4),)),)), how, StepCosts(**costs)
        )
        loop.engine = Copier(loop.facts, loop.costs, every=0, free=frozenset({3}))
        for at in range(4):
            text = [(token + at) % 60 + 2 for token in PHRASE]
            loop.submit(prepared(f"r{at}", text * 3, max_tokens=200))
        loop.run()
        took.append(loop.token_at[key("r3")][-1] - loop.token_at[key("r3")][0])
        assert any(len(plan.decode) == 4 and plan.drafts for plan in loop.plans) == (how == ON)
    assert took[1] < 1.05 * took[0] + 12 * 0.01


def test_free_text_is_never_drafted_and_stays_one_step_ahead() -> None:
    loop = Loop(facts(verifies=True), ON)
    loop.submit(prepared("a", [2 + n * 7 % 61 for n in range(30)], max_tokens=60))
    loop.run()
    assert sum(bool(plan.drafts) for plan in loop.plans) <= 3


def test_no_draft_that_costs_more_than_it_saves_is_verified() -> None:
    loop = Loop(facts(verifies=True, draft_costs=((2, 3.0), (33, 60.0))), ON)
    loop.engine = Copier(loop.facts, loop.costs)
    loop.submit(prepared("a", PHRASE * 3, max_tokens=300))
    loop.run()
    assert not any(plan.drafts for plan in loop.plans)
    assert len(loop.made[key("a")]) == 300


def test_drafts_stop_where_the_last_digits_could_differ() -> None:
    loop = loop_of(AUTO, every=0)
    loop.submit(prepared("a", PHRASE * 29, max_tokens=120))
    loop.run()
    assert loop.made[key("a")] == (PHRASE * 12)
    assert 15 < sum(map(drafted_tokens, loop.plans)) <= EXACT_TOKENS - 29 * len(PHRASE)


@given(st.randoms(use_true_random=False), st.integers(3, 25))
@settings(max_examples=30, deadline=None)
def test_a_row_alone_is_drafted_in_the_same_places_whatever_steps_take(
    chance: random.Random, every: int
) -> None:
    """Equal places give equal last digits, so the text of a request is repeatable."""
    told: list[list[Any]] = []
    for disturbed in (False, True):
        loop = loop_of(ON, every, column_s=0.02 * chance.random(), decode_row_s=chance.random())
        loop.submit(prepared("a", PHRASE * 3, max_tokens=150))
        while not loop.scheduler.is_empty:
            if disturbed and chance.random() < 0.1:
                loop.scheduler.pause(key("a"), loop.now)
                for _ in range(chance.randrange(4)):
                    loop.turn()
                loop.scheduler.resume(key("a"))
            if not loop.turn():
                loop.now += 0.01
        told.append([plan.drafts for plan in loop.plans if plan.drafts])
    assert told[0] == told[1] and told[0]


def test_other_models_get_no_drafts() -> None:
    loop = Loop(facts(), ON)
    loop.engine = Copier(loop.facts, loop.costs)
    loop.submit(prepared("a", PHRASE * 3, max_tokens=60))
    loop.run()
    assert not any(plan.drafts for plan in loop.plans)


def test_a_prediction_is_drafted_from_the_first_token_on() -> None:
    loop = loop_of(ON, every=0)
    request = replace(
        prepared("a", PHRASE, max_tokens=40),
        prediction_tokens=tuple(TokenId(token) for token in PHRASE * 4),
    )
    loop.submit(request)
    loop.run()
    end = loop.ends[key("a")]
    assert isinstance(end, RowFinished)
    assert end.cost.drafts.drafters["prediction"][2] > 15
    assert loop.made[key("a")] == PHRASE * 4


@pytest.mark.parametrize("most", range(1, 20))
def test_a_text_ends_at_its_limit_inside_a_draft(most: int) -> None:
    loop = loop_of(ON, every=0)
    loop.submit(prepared("a", PHRASE * 3, max_tokens=most))
    loop.run()
    assert loop.made[key("a")] == (PHRASE * 3)[:most]
    end = loop.ends[key("a")]
    assert isinstance(end, RowFinished) and end.finish == "length"


def test_a_stop_token_inside_a_draft_ends_the_row_and_drops_the_rest() -> None:
    loop = loop_of(ON, every=0)
    text = [*PHRASE * 3, 60, *PHRASE * 3, 60, *PHRASE * 2]
    loop.submit(prepared("a", text, max_tokens=200, stops=frozenset({60})))
    loop.run()
    assert loop.made[key("a")] == [*PHRASE * 3, 60]
    end = loop.ends[key("a")]
    assert isinstance(end, RowFinished) and end.finish == "stop"
    assert not loop.engine.rows


@given(st.randoms(use_true_random=False), st.integers(0, 25))
@settings(max_examples=40, deadline=None)
def test_the_same_tokens_among_arrivals_cancels_pauses_and_little_memory(
    chance: random.Random, every: int
) -> None:
    seed = chance.random()
    told: list[dict] = []
    for drafts in (False, True):
        how = ScheduleSettings(
            speculate="ngram" if drafts else "off",
            max_rows=3,
            headroom_tokens=16,
            prefix_bytes=60,
            kv_bytes=500,
        )
        loop = loop_of(how, every=every)
        scene = random.Random(seed)
        names = [f"r{n}" for n in range(7)]
        cancelled = {name for name in names if scene.random() < 0.2}
        lengths = {name: scene.randrange(1, 90) for name in names}
        arrivals = {name: scene.random() * 1.5 for name in names}
        pauses = {name: scene.random() < 0.3 for name in names}
        waiting, turns = list(names), 0
        while waiting or loop.scheduler.load().running or not loop.scheduler.is_empty:
            turns += 1
            assert turns < 5000
            for name in [one for one in waiting if arrivals[one] <= loop.now]:
                waiting.remove(name)
                salt = int(name[1:])
                text = [(token + salt) % 60 + 2 for token in PHRASE] * 3
                loop.submit(prepared(name, text, max_tokens=lengths[name], stops=frozenset({55})))
            for name in names:
                if pauses[name] and turns % 17 == 3:
                    loop.scheduler.pause(key(name), loop.now)
                elif pauses[name] and turns % 17 == 9:
                    loop.scheduler.resume(key(name))
                if name in cancelled and len(loop.made.get(key(name), [])) > 8:
                    loop.take(loop.scheduler.cancel(RequestId(name), loop.now))
            if not loop.turn():
                loop.now += 0.01
        told.append({name: (loop.made.get(key(name)), loop.ends.get(key(name))) for name in names})
        assert not loop.engine.rows
    for name in names:
        (plain, plain_end), (drafted, drafted_end) = told[0][name], told[1][name]
        shorter = min(len(plain or ()), len(drafted or ()))
        assert (plain or [])[:shorter] == (drafted or [])[:shorter]
        if name not in cancelled:
            assert plain == drafted
            assert type(plain_end) is type(drafted_end)
            if isinstance(plain_end, RowFinished) and isinstance(drafted_end, RowFinished):
                assert plain_end.finish == drafted_end.finish


def test_a_row_that_fails_in_a_draft_fails_once() -> None:
    loop = loop_of(ON, every=0)
    loop.submit(prepared("a", PHRASE * 3, max_tokens=100))
    while not any(plan.drafts for plan in loop.plans):
        loop.turn()
    loop.engine.failing.add(RowId(1))
    loop.run()
    assert isinstance(loop.ends[key("a")], RowFailed)


def asking(name: str, choice: Speculate, text: list[int], **parts: Any) -> PreparedRequest:
    request = prepared(name, text, **parts)
    return replace(request, request=request.request.model_copy(update={"speculate": choice}))


def test_a_request_chooses_its_drafter_before_the_setting() -> None:
    cases: tuple[tuple[Speculate, Speculate, bool], ...] = (
        ("off", "ngram", True),
        ("off", "auto", True),
        ("ngram", "off", False),
        ("auto", "ngram", True),
        ("ngram", "auto", True),
    )
    for setting, choice, is_drafted in cases:
        loop = loop_of(ScheduleSettings(speculate=setting), every=0)
        loop.submit(asking("a", choice, PHRASE * 3, max_tokens=100))
        loop.run()
        assert loop.made[key("a")] == PHRASE * 10
        assert any(plan.drafts for plan in loop.plans) == is_drafted


@pytest.mark.parametrize("choice", ["off", "auto"])
def test_neighbours_of_a_row_whose_text_must_not_change_decode_plainly(choice: Speculate) -> None:
    loop = loop_of(ON, every=0)
    loop.submit(prepared("a", PHRASE * 3, max_tokens=200))
    loop.submit(asking("b", choice, PHRASE * 2, max_tokens=60))
    loop.run()
    together = [plan for plan in loop.plans if len(plan.decode) > 1]
    assert together and not any(plan.drafts for plan in together)
    assert any(plan.drafts for plan in loop.plans)
    assert loop.made[key("a")] == PHRASE * 20 and loop.made[key("b")] == PHRASE * 6


def test_a_drafter_that_the_model_lacks_is_refused_by_name() -> None:
    able, unable = loop_of(ON), Loop(facts(), ON)
    for choice in SPECULATE:
        refusals = [loop.scheduler.intake.undrafted(choice) for loop in (able, unable)]
        if choice in ("auto", "off"):
            assert refusals == [None, None]
            continue
        assert (refusals[0] is None) == (choice not in ("draft_model", "mtp", "block", "remote"))
        refusal = refusals[1]
        assert refusal is not None and refusal.reason == "unsupported"
        assert refusal.field == "x_speculate" and "use auto or off" in refusal.message
    refusal = able.submit(asking("a", "grammar", PHRASE))
    assert isinstance(refusal, Refusal) and refusal.field == "x_speculate"


@pytest.mark.parametrize("wrong_every", [0, 2, 3, 40])
def test_a_row_that_the_draft_model_guesses_has_its_text(wrong_every: int) -> None:
    made, plans = [], []
    choices: tuple[Speculate, ...] = ("off", "draft_model")
    for choice in choices:
        loop = Loop(facts(verifies=True, draft_token_cost=0.05, draft_costs=((33, 1.6),)), ON)
        loop.engine.wrong_every = wrong_every
        loop.submit(asking("a", choice, PHRASE, max_tokens=200))
        loop.submit(asking("b", "off", PHRASE, max_tokens=3))
        loop.run()
        made.append(loop.made)
        plans.append(loop.plans)
        end = loop.ends[key("a")]
        assert isinstance(end, RowFinished) and len(loop.made[key("a")]) == 200
    assert made[0] == made[1]
    proposals = sum(bool(plan.propose) for plan in plans[1])
    counts = end.cost.drafts  # without the draft of the last step
    assert proposals and counts.drafts in ((proposals, proposals - 1) if wrong_every else (0,))
    assert not any(plan.propose for plan in plans[1] if len(plan.decode) > 1)
    if wrong_every == 40:
        assert len(plans[1]) < 0.25 * len(plans[0]) and counts.accepted > 0.7 * counts.drafted
    if wrong_every == 0:
        assert proposals < 5  # it has failed, so it is asked rarely


@pytest.mark.parametrize("depth", [1, 3])
def test_a_row_that_an_mtp_head_guesses_has_its_text(depth: int) -> None:
    able = facts(verifies=True, draft_token_cost=0.05, draft_costs=((33, 1.6),), draft_depth=depth)
    loop = Loop(able, ON)
    loop.engine.wrong_every = 9
    loop.submit(asking("a", "mtp", PHRASE, max_tokens=100))
    loop.run()
    plain = Loop(able, ON)
    plain.submit(asking("a", "off", PHRASE, max_tokens=100))
    plain.run()
    assert loop.made == plain.made
    lengths = [count for plan in loop.plans for _, count in plan.propose]
    assert max(lengths) == depth and len(loop.plans) < (0.65, 0.4)[depth > 1] * len(plain.plans)
    guessed = [
        [spec.guessed for plan in each.plans for spec in plan.admit] for each in (loop, plain)
    ]
    assert guessed == [[True], [False]]


def test_a_draft_model_that_costs_more_than_it_saves_is_not_asked() -> None:
    loop = Loop(facts(verifies=True, draft_token_cost=0.9), ScheduleSettings())
    loop.submit(asking("a", "draft_model", PHRASE, max_tokens=60))
    loop.run()
    assert not any(plan.propose for plan in loop.plans) and len(loop.made[key("a")]) == 60


def test_the_draft_model_has_the_kv_of_the_longest_row() -> None:
    table = RowTable(facts(draft_token_cost=0.1), ScheduleSettings())
    assert table.cost_bytes([10, 30]) == 2 * 30 + 30
    assert RowTable(facts(), ScheduleSettings()).cost_bytes([10, 30]) == 2 * 30
