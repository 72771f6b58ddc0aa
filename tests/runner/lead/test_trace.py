"""What a lead runner tells of one request, from events of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.tokens import TraceSpan
from runner.engine import RowId, SampledToken
from runner.lead.lead_loop import Stepped
from runner.lead.trace import MOST_CHOICES, MOST_SPANS, RequestTrace, trace_of
from runner.schedule.rows import RowEvent, RowKey, RowPrefilled, RowStarted, RowToken
from tests.harness.open_requests import StandInHost, open_request
from tests.harness.scheduling import prepared

RID = RequestId("r")
CAME_AT, READY_AT = 100.0, 101.0


def traced(choices: int = 1) -> RequestTrace:
    return RequestTrace(RID, choices, received_at=CAME_AT, prepared_at=READY_AT)


def key(choice: int = 0) -> RowKey:
    return RowKey(RID, choice)


def token(choice: int = 0) -> RowToken:
    return RowToken(key(choice), SampledToken(RowId(1), TokenId(5)))


def step(trace: RequestTrace, at: float, *events: RowEvent, step_s: float = 0.25) -> None:
    news = Stepped(1, events, read_at=at, step_s=step_s, planned_at=at)
    for event in events:
        trace.took(event, news)


def named(spans: Sequence[TraceSpan], choice: int = 0) -> list[tuple[str, float, float, int]]:
    return [
        (one.name, one.began_s, one.ended_s, one.tokens) for one in spans if one.choice == choice
    ]


def test_a_request_is_told_from_its_text_to_its_end_without_a_gap() -> None:
    trace = traced()
    step(trace, 102.0, RowStarted(key(), cached_tokens=4))
    step(trace, 103.0, RowPrefilled(key(), 10, 16))
    step(trace, 104.0, RowPrefilled(key(), 16, 16), token())
    step(trace, 105.0, token())
    told = trace.report(107.0)
    assert (told.received_at, told.accepted_at, told.told_at) == (CAME_AT, READY_AT, 107.0)
    assert named(told.spans) == [
        ("template", 0.0, 1.0, 0),
        ("queued", 1.0, 2.0, 0),
        ("prefill", 2.0, 3.0, 6),
        ("prefill", 3.0, 4.0, 6),
        ("decode", 4.0, 5.0, 1),
        ("end", 5.0, 7.0, 0),
    ]
    assert [one.computed_s for one in told.spans if one.steps] == [0.25, 0.25, 0.25]


def test_a_request_that_never_had_a_row_waited_to_its_end() -> None:
    assert named(traced().report(103.0).spans) == [
        ("template", 0.0, 1.0, 0),
        ("queued", 1.0, 3.0, 0),
    ]


def test_a_row_that_was_put_out_keeps_the_time_between_its_tokens() -> None:
    trace = traced()
    step(trace, 102.0, RowStarted(key(), 0), RowPrefilled(key(), 5, 5), token())
    step(trace, 103.0, token())
    step(trace, 109.0, token())
    decode = [one for one in trace.report(110.0).spans if one.name == "decode"]
    assert [(one.ended_s - one.began_s, one.longest_s) for one in decode] == [
        (1.0, 1.0),
        (6.0, 6.0),
    ]


def test_each_choice_has_a_row_of_its_own_and_some_of_very_many_are_told() -> None:
    trace = traced(choices=MOST_CHOICES + 3)
    for choice in range(MOST_CHOICES + 3):
        step(trace, 102.0, RowStarted(key(choice), 0))
        step(trace, 103.0, RowPrefilled(key(choice), 5, 5), token(choice))
        step(trace, 104.0 + choice, token(choice))
    told = trace.report(130.0)
    assert told.choices == MOST_CHOICES
    assert {one.choice for one in told.spans} == set(range(MOST_CHOICES))
    assert named(told.spans, 2)[-2:] == [("decode", 3.0, 6.0, 1), ("end", 6.0, 30.0, 0)]


@given(st.integers(1, 40 * MOST_SPANS), st.integers(0, 3 * MOST_SPANS))
def test_spans_are_bounded_and_lose_neither_tokens_nor_time(tokens: int, chunks: int) -> None:
    trace = traced()
    step(trace, 102.0, RowStarted(key(), 0))
    at = 102.0
    for chunk in range(chunks):
        at += 0.5
        step(trace, at, RowPrefilled(key(), chunk + 1, chunks))
    for _ in range(tokens):
        step(trace, at, token())
        at += 0.5
    told = trace.report(at + 1)
    for name, tokens_of in (("prefill", chunks), ("decode", tokens - (chunks > 0))):
        of = [one for one in told.spans if one.name == name]
        assert len(of) <= MOST_SPANS
        if chunks:
            assert sum(one.tokens for one in of) == tokens_of
            assert all(one.longest_s == 0.5 for one in of)
    ends = [one.ended_s for one in told.spans]
    assert [one.began_s for one in told.spans] == [0.0, *ends[:-1]]
    assert ends[-1] == pytest.approx(at + 1 - CAME_AT)


def test_a_traced_request_has_come_when_it_came_here() -> None:
    plain = prepared("r", [1, 2], n=2)
    asked = plain.request.model_copy(update={"trace": True})
    for waited_ms in (0, 4000):
        opened = open_request(asked, StandInHost(), [], waited_ms=waited_ms)
        trace = trace_of(opened, plain, READY_AT)
        assert trace.report(103.0).received_at == 0.0, "what it waited elsewhere is not ours"
