"""What a gateway did in the last minute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.view.counters import HistogramTotals, NodeTotals, RecentMinute

NONE = HistogramTotals((), (), 0.0)


def totals(tokens: int, ended: int = 0, seconds: float = 0.0) -> NodeTotals:
    told = HistogramTotals((float("inf"),), (ended,), seconds)
    return NodeTotals({}, 0, tokens, 0, NONE, NONE, told)


def test_the_first_sample_tells_nothing_and_a_minute_that_is_over_does_not_count() -> None:
    minute = RecentMinute(0.0)
    assert minute.noted(totals(0), 0.0) == (0.0, None, None, None)
    found = minute.noted(totals(100, ended=2, seconds=3.0), 10.0)
    assert found == (10.0, pytest.approx(10.0), pytest.approx(10.0), pytest.approx(1.5))
    found = minute.noted(totals(400, ended=2, seconds=3.0), 20.0)
    assert found == (20.0, pytest.approx(20.0), pytest.approx(30.0), pytest.approx(1.5))
    quiet = minute.noted(totals(400, ended=2, seconds=3.0), 79.0)
    assert quiet.avg_tps_60s == pytest.approx(0.0) and quiet.avg_latency_60s is None


def test_counts_that_went_back_begin_anew() -> None:
    minute = RecentMinute(0.0)
    minute.noted(totals(1000, ended=9, seconds=9.0), 0.0)
    assert minute.noted(totals(10), 5.0) == (5.0, None, None, None)
    assert minute.noted(totals(20), 6.0).avg_tps_60s == pytest.approx(10.0)


@given(st.lists(st.tuples(st.floats(0.01, 90.0), st.integers(0, 5000)), min_size=2, max_size=40))
def test_a_peak_is_no_less_than_the_average_and_no_more_than_what_was_counted(
    steps: list[tuple[float, int]],
) -> None:
    minute, now, tokens = RecentMinute(0.0), 0.0, 0
    minute.noted(totals(0), now)
    for seconds, more in steps:
        now, tokens = now + seconds, tokens + more
        found = minute.noted(totals(tokens), now)
        if found.avg_tps_60s is None or found.peak_tps_60s is None:
            assert seconds >= 59.9
            continue
        assert found.avg_tps_60s <= found.peak_tps_60s * (1 + 1e-9)
        fastest = max(count / span for span, count in steps)
        assert found.peak_tps_60s <= fastest * (1 + 1e-9)
