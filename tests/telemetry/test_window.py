"""Rates over a sliding window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.window import Rates, Window


def test_one_sample_has_no_rate() -> None:
    assert Window(5.0).add(10.0, 100.0).per_s == 0.0


def test_the_rate_is_growth_over_the_span_and_old_samples_leave() -> None:
    window = Window(2.0)
    for at, value in ((0.0, 0.0), (1.0, 100.0), (2.0, 110.0), (3.0, 120.0)):
        window = window.add(at, value)
    assert window.per_s == pytest.approx(10.0)
    assert len(window.samples) == 3


def test_a_counter_that_went_backwards_starts_anew() -> None:
    window = Window(5.0).add(0.0, 50.0).add(1.0, 60.0).add(2.0, 1.0)
    assert window.per_s == 0.0
    assert window.add(3.0, 3.0).per_s == pytest.approx(2.0)


def test_a_sample_that_is_not_newer_changes_nothing() -> None:
    window = Window(5.0).add(1.0, 1.0)
    assert window.add(1.0, 9.0) is window


@given(
    st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 100.0)), min_size=2, max_size=50),
    st.floats(0.1, 10.0),
)
def test_the_window_spans_at_least_what_it_promises_and_is_bounded(
    steps: list[tuple[float, float]], span_s: float
) -> None:
    window, at, value = Window(span_s), 0.0, 0.0
    for step_s, growth in steps:
        at, value = at + step_s, value + growth
        window = window.add(at, value)
        assert all(sample_at > at - span_s for sample_at, _ in window.samples[1:])
        assert window.per_s >= 0.0
    assert window.samples[0][0] <= max(at - span_s, steps[0][0])


def test_forgotten_keys_start_anew() -> None:
    rates = Rates(5.0)
    rates.rate("a", 0.0, 0.0)
    assert rates.rate("a", 1.0, 4.0) == pytest.approx(4.0)
    rates.keep({"b"})
    assert rates.rate("a", 2.0, 8.0) == 0.0
