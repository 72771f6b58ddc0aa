"""Long prompts beside decodes, in virtual time: the prefill share keeps its two bounds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import quantiles

import pytest

from bus.ids import RequestId
from runner.budget import CostModel, PrefillAccount
from runner.rows import RowKey
from runner.schedule_rows import ScheduleSettings
from tests.harness.engine import StepCosts, facts
from tests.harness.scheduling import Loop, prepared


def start_decodes(loop: Loop, count: int) -> list[RowKey]:
    """`count` rows that decode for longer than any test looks."""
    for index in range(count):
        tokens = [(index * 17 + position) % 60 for position in range(16)]
        loop.submit(prepared(f"d{index}", tokens, max_tokens=3000))
    keys = [RowKey(RequestId(f"d{index}"), 0) for index in range(count)]
    while any(len(loop.made.get(key, ())) < 30 for key in keys):
        loop.turn()
    return keys


def gaps(times: list[float], start: float, stop: float) -> list[float]:
    inside = [at for at in times if start <= at <= stop]
    return [after - before for before, after in itertools.pairwise(inside)]


def finish_s(loop: Loop, length: int, name: str = "long") -> float:
    """Seconds from submitting a prompt of `length` tokens to its first token."""
    key = RowKey(RequestId(name), 0)
    begun = loop.now
    loop.submit(prepared(name, [position % 59 for position in range(length)], max_tokens=2))
    while key not in loop.made:
        loop.turn()
    return loop.now - begun


COSTS = {
    "a small model, where a step costs much and a token little": StepCosts(
        decode_fixed_s=0.004, decode_row_s=0.0003, prefill_fixed_s=0.003, prefill_token_s=0.0002
    ),
    "a larger one, bound by arithmetic": StepCosts(
        decode_fixed_s=0.015, decode_row_s=0.0015, prefill_fixed_s=0.005, prefill_token_s=0.001
    ),
}


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS.keys())
@pytest.mark.parametrize("share", [0.5, 0.7, 0.8])
def test_a_long_prefill_takes_its_share_and_no_more(share: float, costs: StepCosts) -> None:
    settings = ScheduleSettings(prefill_share=share, prefix_bytes=0)
    alone = Loop(facts(), settings, costs)
    finish_s(alone, 2000, "warm-up")  # learns what prefill costs
    alone.run()
    alone_s = finish_s(alone, 3000)
    loop = Loop(facts(), settings, costs)
    keys = start_decodes(loop, 8)
    before = gaps(loop.token_at[keys[0]], 0.0, loop.now)[-20:]
    begun = loop.now
    took_s = finish_s(loop, 3000)
    during = gaps(loop.token_at[keys[0]], begun, loop.now)
    itl = quantiles(during, n=20)[18] / quantiles(before, n=20)[9]
    assert itl <= 1.4 / (1 - share)
    assert took_s <= 1.5 / share * alone_s


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_the_share_holds_where_a_steps_time_is_seen_in_its_neighbours(share: float) -> None:
    costs = replace(COSTS["a larger one, bound by arithmetic"], leak=0.6)
    loop = Loop(facts(), ScheduleSettings(prefill_share=share, prefix_bytes=0), costs)
    keys = start_decodes(loop, 8)
    for name in ("first", "second"):
        begun = loop.now
        finish_s(loop, 3000, name)
        during = gaps(loop.token_at[keys[0]], begun, loop.now)
        mean = sum(during) / len(during) / costs.decode_s(8)
        assert mean == pytest.approx(1 / (1 - share), rel=0.15)


def test_a_short_prompt_is_not_kept_waiting_by_a_long_one() -> None:
    loop = Loop(facts(), ScheduleSettings(prefix_bytes=0))
    finish_s(loop, 1000, "warm-up")
    loop.submit(prepared("long", [position % 59 for position in range(3000)]))
    loop.turn()
    begun = loop.now
    short_s = finish_s(loop, 40, "short")
    loop.run()
    long_s = loop.token_at[RowKey(RequestId("long"), 0)][0] - begun
    assert short_s < long_s / 2


def test_a_short_prompt_after_a_quiet_time_is_not_kept_waiting() -> None:
    loop = Loop(facts(), ScheduleSettings(), COSTS["a larger one, bound by arithmetic"])
    start_decodes(loop, 8)
    begun = len(loop.plans)
    finish_s(loop, 32)
    chunked = [index for index, plan in enumerate(loop.plans[begun:]) if plan.prefill]
    assert chunked[0] == 0
    assert len(chunked) <= 2


def test_rows_of_like_length_are_computed_together() -> None:
    loop = Loop(facts(), ScheduleSettings(first_chunk_tokens=512))
    for index, length in enumerate((60, 62, 64, 200, 58)):
        tokens = [(index * 13 + position) % 60 for position in range(length)]
        loop.submit(prepared(f"r{index}", tokens))
    loop.turn()
    groups = [sorted(chunk.stop for chunk in group) for group in loop.plans[0].prefill]
    assert groups[0] == [58, 60, 62, 64]


def test_the_cost_model_learns_and_never_expects_a_larger_chunk_to_be_cheaper() -> None:
    costs = CostModel()
    for size, seconds in ((16, 0.02), (64, 0.05), (512, 0.3), (128, 0.09), (64, 0.2)) * 8:
        costs.learn_prefill(size, seconds)
    expected = [costs.prefill_s(size) for size in range(1, 600)]
    assert expected == sorted(expected)
    assert costs.prefill_s(512) == pytest.approx(0.3, rel=0.2)
    assert costs.tokens_within(0.3, least=16, most=512) >= 480


def test_one_outlier_does_not_spoil_the_model() -> None:
    costs = CostModel()
    for _ in range(20):
        costs.learn_decode(4, 0.02)
    costs.learn_decode(4, 5.0)
    assert costs.decode_s(4) < 0.035


def test_an_account_spends_what_it_earned() -> None:
    account = PrefillAccount(0.5)
    spent = 0.0
    for _ in range(1000):
        account.earn(0.01, chunk_s=0.02)
        if account.affords(0.018):
            account.spend(0.018)
            spent += 0.018
    assert spent == pytest.approx(10.0, rel=0.01)
