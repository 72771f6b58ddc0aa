"""What one rank notes of traced requests: bounded, without gaps, and nothing where none is."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from bus.wire.messages.traces import RANK_PARTS, RankPartName, RankSpans
from runner.engine import PrefillChunk, RowId, RowSpec, StepPlan
from runner.group.rank_recorder import (
    DETAILED,
    MOST_PARTS,
    MOST_TRACED,
    MOST_TURNS,
    RankRecorder,
)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def recorder() -> tuple[RankRecorder, Clock]:
    clock = Clock()
    return RankRecorder(clock, threading.Lock()), clock


def row(request: str, name: int = 1) -> RowSpec:
    return RowSpec(RowId(name), (TokenId(1),) * 9, Sampling(), seed=0, traced=request)


def first(request: str, step: int = 1, name: int = 1) -> StepPlan:
    """A plan that admits a row and computes its prompt."""
    chunk = PrefillChunk(RowId(name), 0, 9)
    return StepPlan(step, admit=(row(request, name),), prefill=((chunk,),))


def decode(step: int, *names: int) -> StepPlan:
    return StepPlan(step, decode=tuple(map(RowId, names)))


def passes(spans: RankRecorder, clock: Clock, *parts: tuple[RankPartName, float]) -> None:
    for part, seconds in parts:
        spans.enter(part)
        clock.at += seconds
    spans.enter("host")


def told(spans: RankRecorder, request: str = "r") -> RankSpans:
    found = spans.take(request)
    assert found is not None
    return found


def check(found: RankSpans) -> None:
    """Turns and parts follow each other without gaps; a turn's sums are its whole."""
    at = 0.0
    for turn in found.turns:
        assert turn.began_s == pytest.approx(at)
        at = turn.ended_s
        assert sum(turn.seconds) == pytest.approx(turn.ended_s - turn.began_s)
    assert at == pytest.approx(found.ended_s)
    ends = [0.0, *(one.ended_s for one in found.parts)]
    assert [one.began_s for one in found.parts] == pytest.approx(ends[:-1])


def test_a_request_is_told_from_its_first_plan_on_turn_by_turn() -> None:
    spans, clock = recorder()
    spans.came(first("r"))
    clock.at += 2.0
    spans.begin(first("r"))
    passes(spans, clock, ("host", 0.5), ("wait", 1.0), ("compute", 4.0), ("send", 0.25))
    spans.begin(decode(2, 1, 7))
    passes(spans, clock, ("compute", 1.0), ("idle", 3.0))
    found = told(spans)
    check(found)
    assert found.began_at == 100.0
    turns = [(one.name, one.step, one.tokens, one.ended_s) for one in found.turns]
    assert turns == [
        ("queued", 1, 0, 2.0),
        ("prefill", 1, 9, 7.75),
        ("decode", 2, 1, 11.75),
    ]
    assert [one.name for one in found.parts] == [
        "queued", "host", "wait", "compute", "send", "compute", "idle",
    ]  # fmt: skip
    assert [(one.what, one.sent, one.at_s) for one in found.crossings] == [("plan", False, 0.0)]
    assert spans.take("r") is None


def test_nothing_is_noted_while_no_request_is_traced() -> None:
    spans, clock = recorder()
    plain = StepPlan(1, admit=(row(""),))
    spans.came(plain)
    spans.begin(plain)
    before = {**spans.__dict__, "_part": "compute"}
    for _ in range(9):
        assert spans.enter("compute") == 0.0
        clock.at += 1.0
        spans.begin(decode(2, 1))
    assert not spans.notes and spans.__dict__ == before
    assert spans.part == "compute", "what the engine is at is known all the same"
    assert spans.take("r") is None


def test_after_its_trace_is_taken_a_rank_notes_nothing() -> None:
    spans, clock = recorder()
    spans.begin(first("r"))
    passes(spans, clock, ("compute", 1.0))
    told(spans)
    assert not spans.notes and spans.enter("compute") == 0.0


def test_a_row_that_comes_back_goes_on_with_its_request_and_others_are_told_apart() -> None:
    spans, clock = recorder()
    spans.begin(first("r", 1, name=1))
    passes(spans, clock, ("compute", 1.0))
    spans.begin(first("s", 2, name=2))
    passes(spans, clock, ("compute", 1.0))
    spans.begin(first("r", 3, name=3))
    passes(spans, clock, ("compute", 1.0))
    one, other = told(spans), told(spans, "s")
    for found in (one, other):
        check(found)
    assert [(turn.step, turn.name) for turn in one.turns] == [
        (1, "prefill"), (2, "other"), (3, "prefill"),
    ]  # fmt: skip
    assert [(turn.step, turn.name) for turn in other.turns] == [(2, "prefill"), (3, "other")]


def test_some_of_very_many_are_noted() -> None:
    spans, clock = recorder()
    names = range(1, MOST_TRACED + 3)
    admit = tuple(row(f"r{name}", name) for name in names)
    spans.begin(StepPlan(1, admit=admit, decode=tuple(map(RowId, names))))
    passes(spans, clock, ("compute", 1.0))
    found = [spans.take(f"r{name}") for name in names]
    assert sum(one is not None for one in found) == MOST_TRACED


@given(
    st.integers(1, 20 * MOST_TURNS),
    st.lists(st.sampled_from(RANK_PARTS[1:]), min_size=1, max_size=30),
)
def test_what_is_told_is_bounded_and_loses_neither_time_nor_tokens_nor_bytes(
    steps: int, parts: Sequence[RankPartName]
) -> None:
    spans, clock = recorder()
    began_at = clock.at
    for step in range(1, steps + 1):
        spans.begin(first("r") if step == 1 else decode(step, 1))
        spans.crossed("hidden", 2, sent=True, bytes_=3, at=clock.at)
        passes(spans, clock, *((part, 0.25) for part in parts), ("compute", 0.25))
    found = told(spans)
    check(found)
    assert found.ended_s == pytest.approx(clock.at - began_at)
    assert len(found.turns) <= DETAILED + MOST_TURNS
    assert len(found.parts) <= MOST_PARTS and len(found.crossings) <= MOST_PARTS
    assert sum(turn.steps for turn in found.turns) == steps
    assert sum(turn.tokens for turn in found.turns) == 9 + steps - 1
    (total,) = found.totals
    assert (total.count, total.bytes_) == (steps, 3 * steps)


def test_what_crosses_is_numbered_by_step_peer_and_kind() -> None:
    spans, clock = recorder()
    spans.begin(first("r", 4))
    built = [spans.numbered("hidden", 2, sent=False) for _ in range(2)]
    assert built == [(4, 0), (4, 1)]
    assert spans.numbered("hidden", 0, sent=True) == (4, 0)
    spans.begin(decode(5, 1))
    assert spans.numbered("hidden", 2, sent=False) == (5, 0)
    spans.crossed("hidden", 2, sent=False, bytes_=8, at=101.0, numbered=built[1])
    passes(spans, clock, ("compute", 1.0))
    assert [(one.step, one.number) for one in told(spans).crossings] == [(4, 1)]
