"""What the last minute had, from counts that only grow; percentiles of a histogram."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.verbs.monitor.figures import LastMinute, percentile
from tests.gateway.cli.verbs.monitor.samples import BOUNDS, counters


@pytest.mark.parametrize(
    ("counts", "ratio", "expected"),
    [
        ((10, 0, 0, 0), 0.5, 0.05),
        ((0, 10, 0, 0), 0.5, 0.15),
        ((5, 5, 0, 0), 0.5, 0.1),
        ((5, 5, 0, 0), 0.75, 0.15),
        ((9, 0, 0, 1), 0.95, math.inf),
        ((0, 0, 4, 0), 0.25, 0.25),
    ],
)
def test_a_percentile_lies_evenly_within_its_bucket(
    counts: tuple[int, ...], ratio: float, expected: float
) -> None:
    assert percentile(BOUNDS, counts, ratio) == pytest.approx(expected)


def test_of_nothing_there_is_no_percentile() -> None:
    assert math.isnan(percentile(BOUNDS, (0, 0, 0, 0), 0.5))


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0.01, 1))
def test_a_percentile_is_in_the_bucket_of_the_value_that_is_there(
    counts: list[int], ratio: float
) -> None:
    values = [at for at, count in enumerate(counts) for _ in range(count)]
    found = percentile(BOUNDS, counts, ratio)
    if not values:
        assert math.isnan(found)
        return
    bucket = values[max(0, math.ceil(ratio * len(values) - 1e-9) - 1)]
    upper = math.inf if BOUNDS[bucket] is None else BOUNDS[bucket]
    lower = BOUNDS[bucket - 1] if bucket else 0.0
    assert upper is not None and lower is not None
    assert lower - 1e-9 <= found <= upper + 1e-9


def test_a_first_look_tells_of_all_since_the_gateway_began() -> None:
    spell = LastMinute().add(100.0, counters(4, 1, (4, 0, 0, 0)))
    assert spell.seconds is None and spell.requests == {"stop": 4} and spell.http_errors == 1
    assert spell.ttft is not None and spell.ttft.count == 4


def test_later_looks_tell_of_the_last_minute_alone() -> None:
    minute = LastMinute()
    minute.add(0.0, counters(10, 2, (10, 0, 0, 0)))
    spell = minute.add(30.0, counters(11, 2, (10, 1, 0, 0)))
    assert (spell.seconds, spell.requests, spell.http_errors) == (30.0, {"stop": 1}, 0)
    assert spell.ttft is not None and 0.1 < spell.ttft.p50_s <= 0.2
    minute.add(59.0, counters(11, 2, (10, 1, 0, 0)))
    spell = minute.add(95.0, counters(11, 3, (10, 1, 0, 0)))
    assert (spell.seconds, spell.requests, spell.http_errors) == (65.0, {}, 1)
    assert spell.ttft is None and spell.itl is None


def test_a_gateway_that_began_anew_begins_the_minute_anew() -> None:
    minute = LastMinute()
    minute.add(0.0, counters(10, 2))
    spell = minute.add(5.0, counters(1, 0, (1, 0, 0, 0)))
    assert spell.seconds is None and spell.requests == {"stop": 1} and spell.http_errors == 0


def test_a_gateway_that_had_counted_nothing_has_no_buckets_yet() -> None:
    minute = LastMinute()
    nothing = {"bounds": [], "counts": [], "sum": 0.0}
    first = minute.add(0.0, {**counters(), "ttft_s": nothing, "itl_s": nothing})
    assert first.ttft is None and first.itl is None
    spell = minute.add(1.0, counters(1, 0, (1, 0, 0, 0)))
    assert spell.ttft is not None and spell.ttft.count == 1


def test_what_lies_beyond_the_last_bound_is_no_number_in_json() -> None:
    spell = LastMinute().add(0.0, counters(1, 0, (0, 0, 0, 3)))
    assert spell.plain()["ttft"] == {"count": 3, "p50_s": None, "p95_s": None, "p99_s": None}
    assert spell.plain()["itl"]["p50_s"] == pytest.approx(0.05)
