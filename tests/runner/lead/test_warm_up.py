"""What a runner learns before it is ready."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.wire.ids import ModelId, RequestId
from runner.lead.warm_up import LENGTHS, LONGEST_S, WarmUp
from runner.schedule.rows import RowFailed, RowKey
from tests.harness.engine import StepCosts, facts
from tests.harness.scheduling import Loop

COLD = 8.0


def warm(loop: Loop) -> int:
    """Warm up as the runner does; the first prompt costs `COLD` times what others do."""
    usual = loop.costs
    loop.engine.costs = replace(
        usual,
        prefill_fixed_s=COLD * usual.prefill_fixed_s,
        prefill_token_s=COLD * usual.prefill_token_s,
    )
    warm_up = WarmUp(ModelId("fake"), loop.facts, loop.scheduler)
    prompts = 0
    while warm_up.advance(loop.now):
        prompts += 1
        known = set(loop.ends)
        loop.run()
        (key,) = set(loop.ends) - known
        assert warm_up.ended(loop.ends[key])
        loop.engine.costs = usual
    return prompts


@pytest.mark.parametrize("double_at", [600, 2000, float("inf")])
@pytest.mark.parametrize("token_s", [0.0002, 0.001])
def test_what_prefill_costs_is_known_when_the_runner_is_ready(
    token_s: float, double_at: float
) -> None:
    costs = StepCosts(prefill_token_s=token_s, double_at=double_at)
    loop = Loop(facts(), costs=costs)
    assert warm(loop) == len(LENGTHS)
    for tokens in (64, 256, 512):
        real_s = costs.prefill_fixed_s + token_s * tokens
        assert loop.scheduler.prefill_s(tokens) == pytest.approx(real_s, rel=0.2)


def test_the_warm_up_leaves_no_prefix_in_memory() -> None:
    loop = Loop(facts())
    assert warm(loop) == len(LENGTHS)
    assert loop.scheduler.load().prefix_bytes == 0


def test_a_slow_model_is_not_kept_from_being_ready() -> None:
    costs = StepCosts(prefill_token_s=0.01)
    loop = Loop(facts(), costs=costs)
    assert 1 < warm(loop) < len(LENGTHS)
    assert loop.now < 2 * LONGEST_S + COLD * costs.prefill_token_s * LENGTHS[0]


@pytest.mark.parametrize("tokens", [2, 3, 8, 9, 16, 32])
def test_a_short_context_is_kept_to(tokens: int) -> None:
    loop = Loop(facts(context_tokens=tokens))
    assert warm(loop) == 1


def test_a_context_without_room_for_a_prompt_keeps_no_runner_from_being_ready() -> None:
    loop = Loop(facts(context_tokens=1))
    assert warm(loop) == 0


def test_a_prompt_that_is_refused_says_why() -> None:
    loop = Loop(facts(kv_bytes=1))
    with pytest.raises(RuntimeError, match="KV memory"):
        WarmUp(ModelId("fake"), loop.facts, loop.scheduler).advance(loop.now)


def test_a_warm_up_that_fails_says_why() -> None:
    loop = Loop(facts())
    warm_up = WarmUp(ModelId("fake"), loop.facts, loop.scheduler)
    warm_up.advance(loop.now)
    loop.run()
    (key,) = loop.ends
    cost = loop.ends[key].cost
    with pytest.raises(RuntimeError, match="no luck"):
        warm_up.ended(RowFailed(key, "internal", "no luck", cost))
    other = RowKey(RequestId("another"), 0)
    assert not warm_up.ended(RowFailed(other, "internal", "no luck", cost))
