"""What followers check of the plans they get, and what ranks agree on before the first."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from bus.wire.ids import TokenId
from runner.engine import RowId, SampledToken, StepPlan
from runner.group.lockstep import (
    Disagreement,
    Lockstep,
    OutOfStep,
    RankFacts,
    SharedPlan,
    agree,
    digested,
)


def sampled(row: int, token: int) -> SampledToken:
    return SampledToken(RowId(row), TokenId(token))


def plan(step: int, covers: int = 0, digest: int = 0, *barred: int) -> SharedPlan:
    return SharedPlan(StepPlan(step, digest=digest), covers, tuple(map(RowId, barred)))


def test_a_plan_that_is_missing_is_noticed() -> None:
    follower = Lockstep(hears=True)
    follower.take(plan(1))
    with pytest.raises(OutOfStep, match="plan 3 came after plan 1"):
        follower.take(plan(3))


def test_a_plan_given_twice_is_noticed() -> None:
    follower = Lockstep(hears=True)
    follower.take(plan(1))
    with pytest.raises(OutOfStep, match="plan 1 came after plan 1"):
        follower.take(plan(1))


def test_other_tokens_than_the_leads_are_noticed_at_the_next_plan_that_covers_them() -> None:
    follower = Lockstep(hears=True)
    follower.take(plan(1))
    follower.take(plan(2))
    follower.add_tokens(1, [sampled(7, 40)])
    with pytest.raises(OutOfStep, match="tokens differ"):
        follower.take(plan(3, 1, digested(0, RowId(7), 41)))


def test_a_rank_that_tokens_do_not_reach_checks_numbers_alone() -> None:
    follower = Lockstep(hears=False)
    follower.take(plan(1))
    follower.add_tokens(1, [sampled(7, 0)])
    follower.take(plan(2, 1, digested(0, RowId(7), 41)))
    with pytest.raises(OutOfStep):
        follower.take(plan(4))


def test_tokens_of_a_row_that_failed_in_their_step_do_not_count() -> None:
    follower = Lockstep(hears=True)
    follower.take(plan(1))
    follower.add_tokens(1, [sampled(7, 40), sampled(8, 50)])
    follower.take(plan(2, 1, digested(0, RowId(7), 40), 8))


steps = st.lists(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2**31 - 1)), max_size=5), max_size=20
)


@given(steps, st.data())
def test_a_follower_keeps_step_with_a_lead_that_reads_when_it_likes(made, data) -> None:
    follower = Lockstep(hears=True)
    digest = covers = 0
    for step in range(1, len(made) + 1):
        for at in range(covers, data.draw(st.integers(covers, step - 1))):
            for row, token in made[at]:
                digest = digested(digest, RowId(row), token)
            covers = at + 1
        while follower.read < covers:
            follower.add_tokens(follower.read + 1, [sampled(*one) for one in made[follower.read]])
        follower.take(plan(step, covers, digest))
    assert follower.issued == len(made)


FACTS = RankFacts(
    rank=0,
    config="c",
    precision="float32",
    weights_bytes=100,
    memory_limit_bytes=1100,
    kv_bytes_per_token=2,
    kv_bytes_fixed=0,
    context_tokens=4096,
    vocabulary=64,
    batches_ragged=True,
    groups=True,
    slabs=True,
)


def test_ranks_of_unlike_models_do_not_agree() -> None:
    with pytest.raises(Disagreement, match="rank 1 and rank 0 have different config"):
        agree([FACTS, replace(FACTS, rank=1, config="d")])


def test_ranks_of_unlike_precision_do_not_agree() -> None:
    with pytest.raises(Disagreement, match="rank 1 computes in bfloat16, rank 0 in float32"):
        agree([FACTS, replace(FACTS, rank=1, precision="bfloat16")])


def test_what_one_rank_cannot_do_none_does() -> None:
    agreed = agree([FACTS, replace(FACTS, rank=1, slabs=False, groups=False, context_tokens=9)])
    assert (agreed.slabs, agreed.groups, agreed.batches_ragged) == (False, False, True)
    assert agreed.context_tokens == 9


SHARES = st.floats(0.0, 0.125)
ranks = st.lists(
    st.builds(
        lambda weights, spare, per_token, fixed: replace(
            FACTS,
            weights_bytes=weights,
            memory_limit_bytes=weights + spare,
            kv_bytes_per_token=min(10**6, int(per_token * spare)),
            kv_bytes_fixed=min(10**9, int(fixed * spare)),
        ),
        st.integers(0, 10**12),
        st.integers(1, 10**12),
        SHARES,
        SHARES,
    ),
    min_size=1,
    max_size=8,
)
"""A row, and a token, take at most an eighth of what a rank has to spare: some always fit."""


@given(ranks, st.floats(0.0, 1.0))
def test_rows_that_fit_what_was_agreed_fit_every_rank(ranks, share) -> None:
    """A share of the rows that fit, with as many tokens as then fit."""
    agreed = agree(ranks)
    per_token, fixed = agreed.kv_bytes_per_token, agreed.kv_bytes_fixed
    spare = agreed.memory_limit_bytes - agreed.weights_bytes
    rows = max(1, int(share * (spare // max(1, fixed + per_token))))
    tokens = (spare - rows * fixed) // max(1, rows * per_token)
    assume(tokens > 0)  # else the smallest rank has room for a row without tokens
    for one in ranks:
        cost = rows * (tokens * one.kv_bytes_per_token + one.kv_bytes_fixed)
        assert cost <= one.spare_bytes * (1 + 1e-9)


@given(ranks, st.integers(1, 64))
def test_without_a_fixed_part_the_tightest_rank_is_used_to_the_full(ranks, rows) -> None:
    ranks = [
        replace(one, kv_bytes_fixed=0, kv_bytes_per_token=1 + n) for n, one in enumerate(ranks)
    ]
    agreed = agree(ranks)
    spare = agreed.memory_limit_bytes - agreed.weights_bytes
    tokens = spare // (rows * agreed.kv_bytes_per_token)
    most = min(one.spare_bytes // (rows * one.kv_bytes_per_token) for one in ranks)
    assert tokens == most
