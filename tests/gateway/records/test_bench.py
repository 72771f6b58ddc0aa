"""The bench of the request log measures what it says: both gateways answer, one of them logs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.bench.request_log import compared, full_log, questions, rounds_of


def test_the_cost_of_a_row_is_told_from_rounds() -> None:
    rounds = [{"on": 3.0, "off": 2.0}, {"on": 2.2, "off": 2.0}, {"on": 2.1, "off": 2.1}]
    assert compared(rounds, 100) == {
        "on_us_per_token": 2.2,
        "off_us_per_token": 2.0,
        "ratio": pytest.approx(1.1),
        "us_per_row": pytest.approx(20.0),
    }


@pytest.mark.slow
def test_a_round_asks_both_gateways() -> None:
    (costs,) = rounds_of(4, 50, 1, 1)
    assert set(costs) == {"on", "off"} and min(costs.values()) > 0


def test_a_full_log_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    full_log(path, 300)
    found = asyncio.run(questions(path, 3))
    assert len(found) == 4
    assert all(0 < one["p50_ms"] <= one["p99_ms"] for one in found.values())
