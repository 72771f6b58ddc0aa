"""Long prompts beside decodes, in virtual time: the prefill share keeps its two bounds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import median, quantiles

import pytest

from bus.wire.ids import RequestId
from runner.schedule.budget import PrefillAccount, StepTime, Timekeeper
from runner.schedule.costs import CostModel, GroupSize
from runner.schedule.rows import RowKey
from runner.schedule.table import ScheduleSettings
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


def chunks(loop: Loop, first: int) -> list[int]:
    """The tokens of each prefill chunk from the plan `first` on."""
    return [
        chunk.stop - chunk.start
        for plan in loop.plans[first:]
        for group in plan.prefill
        for chunk in group
    ]


COSTS = {
    "a small model, where a step costs much and a token little": StepCosts(
        decode_fixed_s=0.004, decode_row_s=0.0003, prefill_fixed_s=0.003, prefill_token_s=0.0002
    ),
    "a larger one, bound by arithmetic": StepCosts(
        decode_fixed_s=0.015, decode_row_s=0.0015, prefill_fixed_s=0.005, prefill_token_s=0.001
    ),
    "one whose attention is dear": StepCosts(
        decode_fixed_s=0.03,
        decode_row_s=0.001,
        prefill_fixed_s=0.005,
        prefill_token_s=0.0006,
        double_at=1500,
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


def test_short_prompts_that_come_together_are_not_served_one_by_one() -> None:
    costs = COSTS["a larger one, bound by arithmetic"]
    loop = Loop(facts(), ScheduleSettings(prefix_bytes=0), costs)
    finish_s(loop, 500, "warm-up")
    start_decodes(loop, 1)
    begun, first = loop.now, len(loop.plans)
    for index in range(15):
        tokens = [(index * 13 + position) % 60 for position in range(100)]
        loop.submit(prepared(f"s{index}", tokens, max_tokens=1))
    keys = [RowKey(RequestId(f"s{index}"), 0) for index in range(15)]
    while not all(key in loop.ends for key in keys):
        loop.turn()
    alone_s = 15 * 100 * costs.prefill_token_s
    assert loop.now - begun <= 1.3 * alone_s
    decodes = sum(bool(plan.decode) for plan in loop.plans[first:])
    assert decodes >= 5, "the one that decodes goes on"


def test_a_background_prompt_does_not_crowd_out_a_decode() -> None:
    loop = Loop(facts(), ScheduleSettings(prefix_bytes=0))
    keys = start_decodes(loop, 1)
    for index in range(15):
        tokens = [(index * 13 + position) % 60 for position in range(100)]
        loop.submit(prepared(f"s{index}", tokens, max_tokens=1, priority=30))
    begun = loop.now
    while len(loop.ends) < 15:
        loop.turn()
    during = gaps(loop.token_at[keys[0]], begun, loop.now)
    mean = sum(during) / len(during) / loop.costs.decode_s(1)
    assert mean <= 1.4 / (1 - 0.7)


def test_no_stub_of_a_prompt_is_left_for_a_step_of_its_own() -> None:
    costs = COSTS["a larger one, bound by arithmetic"]
    loop = Loop(facts(), ScheduleSettings(prefix_bytes=0), costs)
    finish_s(loop, 500, "warm-up")
    start_decodes(loop, 8)
    first = len(loop.plans)
    finish_s(loop, 76)
    sizes = chunks(loop, first)
    assert sum(sizes) == 76
    assert min(sizes) >= 0.4 * max(sizes)


def test_a_chunk_is_half_as_large_again_at_most_to_complete_a_prompt() -> None:
    costs = COSTS["a larger one, bound by arithmetic"]
    loop = Loop(facts(), ScheduleSettings(prefix_bytes=0), costs)
    finish_s(loop, 1500, "warm-up")
    start_decodes(loop, 8)
    first = len(loop.plans)
    finish_s(loop, 3000)
    usual = int(median(chunks(loop, first)))
    for times in (1.3, 1.7, 2.0, 2.3):
        first = len(loop.plans)
        finish_s(loop, int(times * usual), f"of-{times}")
        assert max(chunks(loop, first)) <= 1.5 * usual
        assert len(chunks(loop, first)) == (1 if times < 1.5 else 2)


def test_what_depth_costs_is_learned() -> None:
    def cost_s(depth: int) -> float:
        return 0.05 * (1 + depth / 800)

    model = CostModel()
    for depth in [*range(0, 3000, 50)] * 2:
        model.learn_prefill([GroupSize(50, depth)], cost_s(depth))
    assert model.prefill_s(GroupSize(50, 3000)) == pytest.approx(cost_s(3000), rel=0.05)
    for start in (0, 1400, 200, 2600, 700) * 4:
        bout = [GroupSize(50, start + 50 * number) for number in range(4)]
        model.learn_prefill(bout, sum(cost_s(group.depth) for group in bout))
    for depth in (0, 500, 2000):
        assert model.prefill_s(GroupSize(50, depth)) == pytest.approx(cost_s(depth), rel=0.1)
    assert model.tokens_within(0.05, least=8, most=512, depth=2400) < 20


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
    noise = itertools.cycle([1.2, 0.9, 1.0, 0.8, 1.1])
    for size in (16, 64, 512, 128, 64) * 8:
        costs.learn_prefill([GroupSize(size)], (0.01 + size * 0.0006) * next(noise))
    expected = [costs.prefill_s(GroupSize(size)) for size in range(1, 600)]
    assert expected == sorted(expected)
    for size in (16, 512):
        assert costs.prefill_s(GroupSize(size)) == pytest.approx(0.01 + size * 0.0006, rel=0.2)
    assert costs.tokens_within(0.3, least=16, most=512) >= 400


def test_a_chunk_whose_time_shows_over_the_next_two_steps_is_learned_whole() -> None:
    costs = CostModel()
    costs.learn_decode(4, 0.02)
    keeper = Timekeeper(costs, PrefillAccount(0.5))
    chunk, none = (GroupSize(100),), ()
    for _ in range(12):
        for groups, prefill_s in ((chunk, 0.02), (none, 0.05), (none, 0.03)):
            step = StepTime(4, groups, booked_s=0.0, took_s=0.02 + prefill_s)
            keeper.took(step, idle_next=False)
    assert costs.prefill_s(GroupSize(100)) == pytest.approx(0.1, rel=0.05)


def test_chunks_in_every_step_are_learned_from_before_the_last_of_them() -> None:
    costs = CostModel()
    costs.learn_decode(4, 0.02)
    keeper = Timekeeper(costs, PrefillAccount(0.5))
    for _ in range(8):
        step = StepTime(4, (GroupSize(100),), booked_s=0.0, took_s=0.02 + 0.1)
        keeper.took(step, idle_next=False)
    assert costs.prefill_s(GroupSize(100)) == pytest.approx(0.1, rel=0.05)


def test_steps_without_decodes_cost_no_savings_of_prefill() -> None:
    costs = CostModel()
    costs.learn_decode(4, 0.02)
    keeper = Timekeeper(costs, PrefillAccount(0.5, balance_s=1.0))
    keeper.took(StepTime(0, (GroupSize(100),), booked_s=0.0, took_s=0.5), idle_next=False)
    assert keeper.account.balance_s == 1.0, "no row waited for that chunk"
    keeper.took(StepTime(4, (GroupSize(100),), booked_s=0.1, took_s=0.32), idle_next=False)
    assert keeper.account.balance_s == pytest.approx(0.8), "it took 0.2 s longer than was booked"


def test_a_device_that_slows_down_is_believed() -> None:
    costs = CostModel()
    for _ in range(20):
        costs.learn_prefill([GroupSize(100), GroupSize(100, 500)], 0.1)
    for _ in range(20):
        costs.learn_prefill([GroupSize(100), GroupSize(100, 500)], 0.2)
    found = costs.prefill_s(GroupSize(100), GroupSize(100, 500))
    assert found == pytest.approx(0.2, rel=0.15)


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
        account.earn(account.earned_s(0.01, account.share), chunk_s=0.02)
        if account.affords(0.018):
            account.spend(0.018)
            spent += 0.018
    assert spent == pytest.approx(10.0, rel=0.01)
