"""How far another's clock is, from messages that went there and back, whatever each way took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.links.clock_offset import DRIFT, KEPT, ClockOffsets, ClockSample

WAYS_S = st.floats(0.0, 2.0)
PINGS = st.lists(
    st.tuples(st.floats(0.0, 30.0), WAYS_S, st.floats(0.0, 1.0), WAYS_S, st.booleans()),
    min_size=1,
    max_size=2 * KEPT,
)


@given(
    PINGS,
    st.floats(-1e6, 1e6),
    st.floats(-DRIFT, DRIFT),
    st.floats(-100.0, 100.0),
    st.floats(0.0, 300.0),
)
def test_the_true_offset_is_within_the_stated_error_whatever_each_way_took(
    pings: list[tuple[float, float, float, float, bool]],
    ahead_s: float,
    pace: float,
    began_at: float,
    took_s: float,
) -> None:
    """Ways are unlike, answers are lost, and the other clock runs fast or slow."""

    def theirs(at: float) -> float:
        return at + ahead_s + pace * at

    offsets, at, heard = ClockOffsets(), 0.0, False
    for pause_s, there_s, rests_s, back_s, lost in pings:
        sent_at = at + pause_s
        had_at = sent_at + there_s
        replied_at = had_at + rests_s
        at = replied_at + back_s
        if not lost:
            heard = True
            offsets.add(ClockSample(sent_at, theirs(had_at), theirs(replied_at), at))
    found = offsets.estimate(began_at, began_at + took_s)
    assert (found is not None) is heard
    if found is not None:
        for when in (began_at, began_at + took_s / 2, began_at + took_s):
            # the pace of one clock as told by the other differs in the square of it
            slack_s = 1e-6 + 2 * DRIFT * DRIFT * 1000
            assert abs(theirs(when) - when - found.offset_s) <= found.error_s + slack_s


def test_the_error_is_half_of_the_way_there_and_back() -> None:
    offsets = ClockOffsets()
    offsets.add(ClockSample(10.0, 50.003, 50.5, 10.507))
    found = offsets.estimate(10.0, 10.507)
    assert found is not None
    assert found.error_s == pytest.approx((0.507 - 0.497) / 2 + DRIFT * 0.507)
    assert found.offset_s == pytest.approx((40.003 + 39.993) / 2)


def test_answers_make_the_error_smaller_and_never_larger() -> None:
    offsets, errors = ClockOffsets(), list[float]()
    for there_s, back_s in ((0.5, 0.001), (0.002, 0.4), (0.3, 0.3)):
        offsets.add(ClockSample(10.0, 10.0 + there_s, 10.0 + there_s, 10.0 + there_s + back_s))
        found = offsets.estimate(10.0, 10.0)
        assert found is not None
        errors.append(found.error_s)
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < 0.01, "the quick way of either counts"


def test_a_clock_that_was_set_anew_counts_from_then_on() -> None:
    offsets = ClockOffsets()
    offsets.add(ClockSample(10.0, 20.0, 20.0, 10.002))
    offsets.add(ClockSample(11.0, 90.0, 90.0, 11.002))
    found = offsets.estimate(11.0, 11.002)
    assert found is not None and found.offset_s == pytest.approx(79.0, abs=0.01)
