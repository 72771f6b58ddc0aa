"""One measurement against ideal links of every speed, and what it may cost them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.survey.link_probe import (
    BUDGET_S,
    FRAME_BYTES,
    MOST_BYTES,
    SERIES,
    Burst,
    LinkProbe,
    ProbeResult,
)

latencies = st.floats(1e-5, 0.3)
speeds = st.floats(2e5, 2e10)


def measure(latency_s: float, bytes_per_s: float, most: int) -> tuple[ProbeResult, list[Burst]]:
    """A gauge over a link that takes each byte its time and each message its way."""
    gauge, now, sent = LinkProbe(most), 50.0, list[Burst]()
    step: Burst | ProbeResult | None = gauge.start(now)
    while isinstance(step, Burst):
        sent.append(step)
        now += 2 * latency_s + step.bytes_ / bytes_per_s
        assert gauge.answered(step.serial + 1, now) is None, "an answer that was not asked for"
        step = gauge.answered(step.serial, now)
    assert step is not None
    return step, sent


@given(latencies, speeds, st.sampled_from([16 << 10, 256 << 10, MOST_BYTES]))
def test_a_link_is_never_measured_faster_than_it_is_nor_given_more_than_allowed(
    latency_s: float, bytes_per_s: float, most: int
) -> None:
    found, sent = measure(latency_s, bytes_per_s, most)
    assert abs(found.round_trip_s - 2 * latency_s) < 1e-6
    assert found.bytes_per_s is not None
    assert found.bytes_per_s <= bytes_per_s * 1.01
    assert sum(burst.bytes_ for burst in sent) <= most
    assert all(0 <= size <= FRAME_BYTES for burst in sent for size in burst.frames)
    sending_s = sum(burst.bytes_ for burst in sent) / bytes_per_s
    first_s = next(burst.bytes_ for burst in sent if burst.bytes_) / bytes_per_s
    assert sending_s <= max(BUDGET_S, first_s) * 1.01


@given(st.floats(1e-5, 1e-3), st.floats(1e6, 1e9))
def test_a_local_link_is_measured_within_a_factor_of_two(latency_s: float, rate: float) -> None:
    found, _ = measure(latency_s, rate, MOST_BYTES)
    assert found.bytes_per_s is not None
    assert found.bytes_per_s >= rate / 2


def test_echoes_alone_are_enough_where_nothing_may_be_sent() -> None:
    found, sent = measure(1e-3, 1e6, 0)
    assert found.bytes_per_s is None
    assert len(sent) == SERIES + 1
    assert {burst.bytes_ for burst in sent} == {0}


def test_load_that_comes_in_the_midst_of_a_measurement_does_not_make_the_way_longer() -> None:
    gauge, now = LinkProbe(FRAME_BYTES), 0.0
    step: Burst | ProbeResult | None = gauge.start(now)
    while isinstance(step, Burst):
        now += 5e-3 if step.serial < 2 * SERIES else 1e-3
        step = gauge.answered(step.serial, now)
    assert step is not None and abs(step.round_trip_s - 1e-3) < 1e-9


def test_a_burst_that_load_made_slow_is_repeated() -> None:
    gauge, now, slow = LinkProbe(MOST_BYTES), 0.0, True
    step: Burst | ProbeResult | None = gauge.start(now)
    while isinstance(step, Burst):
        now += 1e-4 + step.bytes_ / 100e6
        if step.bytes_ and slow:
            now, slow = now + 0.08, False
        step = gauge.answered(step.serial, now)
    assert step is not None and step.bytes_per_s is not None
    assert step.bytes_per_s > 50e6
