"""When models were used last, over restarts and over clocks that jump."""

from __future__ import annotations

from pathlib import Path

from bus.wire.ids import ModelId
from worker.models.last_used import MOST_MODELS, LastUsed

DAY = 86_400


def test_a_model_that_is_used_while_the_clock_is_ahead_makes_no_other_forgotten(
    tmp_path: Path,
) -> None:
    used = {ModelId("a"): 20_000 * DAY, ModelId("b"): 20_400 * DAY}
    LastUsed(tmp_path / "used.json").keep(used)
    assert LastUsed(tmp_path / "used.json").read() == used


def test_beyond_their_number_those_used_longest_ago_are_forgotten(tmp_path: Path) -> None:
    used = {ModelId(f"m{number}"): number for number in range(MOST_MODELS + 2)}
    LastUsed(tmp_path / "used.json").keep(used)
    assert set(used) - set(LastUsed(tmp_path / "used.json").read()) == {"m0", "m1"}
