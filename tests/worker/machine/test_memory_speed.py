"""The speed of a machine's memory: measured once, kept, and repeated if it was disturbed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bus.process.logs import Log
from worker.machine.memory_speed import (
    MOST_PAUSE_S,
    PAUSE_S,
    ROUNDS,
    MemorySpeed,
    judge,
    rates,
    read_speed,
)

CHIP = "Model T"
LOG = Log(node="n", process="test", level="critical")


class Rounds:
    """Measurements in a given order, each with its waits, and how many were asked for."""

    def __init__(self, *results: tuple[Sequence[float], float]) -> None:
        self.results = list(results)
        self.asked = 0

    def __call__(self) -> tuple[Sequence[float], float]:
        self.asked += 1
        return self.results.pop(0)


def looked(speed: MemorySpeed, now: float) -> float:
    speed.look([], now)
    speed.wait(10)
    return speed.bytes_per_s


def test_the_middle_of_even_rounds_counts_with_two_digits() -> None:
    speed = judge([9.41e9, 9.46e9, 9.55e9], 0.01, CHIP, None)
    assert (speed.bytes_per_s, speed.disturbed) == (9.5e9, False)
    assert judge([123e9] * 3, 0.0, CHIP, None).bytes_per_s == 120e9


def test_waits_and_uneven_rounds_disturb_and_the_higher_figure_counts() -> None:
    waited = judge([8e9, 8e9, 8e9], 0.2, CHIP, None)
    uneven = judge([6e9, 7e9, 9e9], 0.0, CHIP, waited)
    assert waited.disturbed and uneven.disturbed and uneven.bytes_per_s == 8e9
    quiet = judge([7e9, 7e9, 7e9], 0.0, CHIP, uneven)
    assert (quiet.bytes_per_s, quiet.disturbed) == (7e9, False)


def test_it_is_measured_once_for_a_machine(tmp_path: Path) -> None:
    file, measure = tmp_path / "speed.json", Rounds(([9e9] * 3, 0.0))
    speed = MemorySpeed(file, CHIP, LOG, measure)
    assert speed.bytes_per_s == 0.0
    assert looked(speed, 0.0) == 9e9 and measure.asked == 1
    assert looked(speed, 1e6) == 9e9 and measure.asked == 1
    again = MemorySpeed(file, CHIP, LOG, measure)
    assert again.bytes_per_s == 9e9 and looked(again, 1e6) == 9e9
    assert MemorySpeed(file, "another", LOG, measure).bytes_per_s == 0.0
    file.write_text("{")
    assert MemorySpeed(file, CHIP, LOG, measure).bytes_per_s == 0.0
    assert looked(MemorySpeed(None, CHIP, LOG, measure), 0.0) == 0.0


def test_a_disturbed_measurement_is_repeated_with_longer_pauses(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    disturbed = ([8e9] * 3, 0.5)
    measure = Rounds(disturbed, disturbed, disturbed, ([9e9] * 3, 0.0))
    speed = MemorySpeed(file, CHIP, LOG, measure)
    assert looked(speed, 0.0) == 8e9
    looked(speed, PAUSE_S - 1)
    assert measure.asked == 1
    looked(speed, PAUSE_S)
    looked(speed, 2 * PAUSE_S)
    assert measure.asked == 2
    later = MemorySpeed(file, CHIP, LOG, measure)
    assert later.bytes_per_s == 8e9 and looked(later, 5.0) == 8e9 and measure.asked == 2
    looked(later, 5.0 + PAUSE_S)
    assert looked(later, 5.0 + PAUSE_S + MOST_PAUSE_S) == 9e9 and not measure.results


def test_too_little_memory_leaves_it_unmeasured(tmp_path: Path) -> None:
    speed = MemorySpeed(tmp_path / "speed.json", CHIP, LOG, Rounds(([], 0.0)))
    assert looked(speed, 0.0) == 0.0 and read_speed(tmp_path / "speed.json", CHIP) is None


def test_the_real_measurement_reads_memory() -> None:
    per_round, waited = rates()
    assert len(per_round) == ROUNDS and 0.0 <= waited < 1.0
    assert min(per_round) > 1e8 and max(per_round) < 1e13, per_round
