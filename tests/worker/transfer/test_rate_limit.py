from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.transfer.rate_limit import RateLimit


def test_without_a_limit_nothing_waits() -> None:
    pace = RateLimit(0)
    pace.sent(1 << 40, 5.0)
    assert pace.wait_s(5.0) == 0.0


@given(
    rate=st.floats(1e6, 1e9),
    sizes=st.lists(st.integers(1, 1 << 20), min_size=1, max_size=50),
    pauses=st.lists(st.floats(0.0, 2.0), min_size=50, max_size=50),
)
def test_what_is_sent_keeps_to_the_rate_but_for_one_piece(
    rate: float, sizes: list[int], pauses: list[float]
) -> None:
    pace, now, sent = RateLimit(rate), 0.0, 0
    for size, pause_s in zip(sizes, pauses, strict=False):
        now += pause_s
        now += pace.wait_s(now)
        assert pace.wait_s(now) == pytest.approx(0.0, abs=1e-6)
        assert sent <= rate * now * (1 + 1e-9) + (1 << 20)
        pace.sent(size, now)
        sent += size
