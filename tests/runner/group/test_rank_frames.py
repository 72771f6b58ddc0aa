"""Frames between ranks: what goes in comes out, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.codec import pack, unpack
from bus.wire.errors import BadMessage
from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.requests import Sampling
from bus.wire.messages.traces import (
    RANK_PARTS,
    RankCrossing,
    RankPart,
    RankSpans,
    RankTotal,
    RankTurn,
)
from runner.engine import (
    EntryId,
    GrammarSpec,
    PrefillChunk,
    PrefixHit,
    PrefixInsert,
    RowId,
    RowSpec,
    StepPlan,
)
from runner.group.lockstep import RankFacts, SharedPlan, agree
from runner.group.rank_frames import (
    AskTrace,
    FormNow,
    RankBeat,
    RankGone,
    RankHello,
    RankMemory,
    RankPing,
    RankPong,
    RankTrace,
    pack_rank,
    unpack_to_lead,
    unpack_to_rank,
)

numbers = st.integers(0, 2**31 - 1)
rows = st.lists(numbers.map(RowId), max_size=4).map(tuple)
specs = st.builds(
    RowSpec,
    numbers.map(RowId),
    st.lists(numbers.map(TokenId), max_size=9).map(tuple),
    st.just(Sampling(temperature=0.0)),
    st.just(0),
    made=numbers,
    prompt_logprobs=st.sampled_from([None, 0]),
    adapter=st.sampled_from(["", "a"]),
    traced=st.sampled_from(["", "r"]),
)
chunks = st.builds(PrefillChunk, numbers.map(RowId), numbers, numbers)
plans = st.builds(
    StepPlan,
    numbers,
    rows,
    rows,
    st.lists(numbers.map(EntryId), max_size=3).map(tuple),
    st.lists(specs, max_size=3).map(tuple),
    st.lists(
        st.builds(PrefixHit, numbers.map(RowId), numbers.map(EntryId), numbers), max_size=3
    ).map(tuple),
    st.lists(st.lists(chunks, max_size=3).map(tuple), max_size=3).map(tuple),
    rows,
    st.lists(
        st.builds(PrefixInsert, numbers.map(EntryId), numbers.map(RowId), numbers), max_size=3
    ).map(tuple),
    st.integers(0, 2**32 - 1),
)
RID = RequestId("r")
SPANS = RankSpans(
    1.5,
    2.0,
    (RankTurn("decode", 3, 1, 0.0, 2.0, 1, (0.0,) * len(RANK_PARTS)),),
    (RankPart("wait", 0.0, 2.0),),
    (RankCrossing("hidden", 3, 0, 2, False, 64, 1.0),),
    (RankTotal("hidden", 2, False, 1, 64),),
)
FACTS = RankFacts(1, "c", "float32", 1, 20, 3, 4, 5, 6, True, False, True)


@given(st.builds(SharedPlan, plans, numbers, rows))
def test_a_plan_arrives_as_it_was_sent(shared: SharedPlan) -> None:
    assert unpack_to_rank(pack_rank(shared)) == shared


def test_a_row_that_is_not_scored_travels_as_it_did_before_rows_were() -> None:
    plain = RowSpec(RowId(3), (TokenId(1),), Sampling(temperature=0.0), seed=0)
    scored = RowSpec(RowId(4), (TokenId(1),), Sampling(), seed=0, prompt_logprobs=5)
    frame = unpack(pack_rank(SharedPlan(StepPlan(1, admit=(plain, scored)), 0)))
    admitted = next(field for field in frame if isinstance(field, list) and field)
    assert [len(row) for row in admitted] == [3, 4]


def test_a_row_that_is_not_traced_travels_as_it_did_before_rows_were() -> None:
    plain = RowSpec(RowId(3), (TokenId(1),), Sampling(), seed=0, adapter="a")
    traced = RowSpec(RowId(4), (TokenId(1),), Sampling(), seed=0, traced="req-1")
    frame = unpack(pack_rank(SharedPlan(StepPlan(1, admit=(plain, traced)), 0)))
    admitted = next(field for field in frame if isinstance(field, list) and field)
    assert [row[3:] for row in admitted] == [[False, "a"], [False, "", "req-1"]]


def test_a_follower_gets_a_rows_tokens_and_not_how_they_are_sampled() -> None:
    spec = RowSpec(
        RowId(3),
        (TokenId(1), TokenId(2)),
        Sampling(temperature=0.7, seed=4),
        seed=4,
        made=1,
        logprobs=2,
        grammar=GrammarSpec("k", "a very secret grammar"),
    )
    frame = pack_rank(SharedPlan(StepPlan(1, admit=(spec,)), 0))
    assert b"secret" not in frame
    there = unpack_to_rank(frame)
    assert isinstance(there, SharedPlan)
    assert there.plan.admit == (RowSpec(RowId(3), spec.tokens, Sampling(temperature=0.0), 0, 1),)


@pytest.mark.parametrize(
    "message",
    [
        FormNow(), RankBeat(4), RankPing(1.5), AskTrace(RID, 4), RankGone("why", True),
        agree([FACTS]),
    ],
)  # fmt: skip
def test_what_a_lead_says_arrives(message) -> None:
    assert unpack_to_rank(pack_rank(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        RankHello(1, 2, b"p"), FACTS, RankBeat(4), RankMemory(16, 9, 8), RankPong(1.5, 2.5, 3.5),
        RankTrace(RID, None), RankTrace(RID, SPANS), RankGone("why", False),
    ],
)  # fmt: skip
def test_what_a_follower_says_arrives(message) -> None:
    assert unpack_to_lead(pack_rank(message)) == message


def test_facts_with_a_field_of_another_type_are_refused() -> None:
    fields = unpack(pack_rank(FACTS))
    fields[4] = "20"
    with pytest.raises(BadMessage, match=r"not a frame for a lead.*int.*str"):
        unpack_to_lead(pack(fields))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.text(max_size=4)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=20,
)


@given(
    st.sampled_from(
        ["plan", "form", "beat", "gone", "agreed", "hello", "facts", "ping", "pong", "ask", "trace"]
    ),
    plain,
    st.data(),
)
def test_whatever_else_comes_is_a_bad_message(tag, body, data) -> None:
    items = [tag, *body] if isinstance(body, list) else [tag, body]
    if data.draw(st.booleans()):
        items = [tag, *([body] * data.draw(st.integers(0, 13)))]
    for read in (unpack_to_rank, unpack_to_lead):
        try:
            read(pack(items))
        except BadMessage:
            continue
