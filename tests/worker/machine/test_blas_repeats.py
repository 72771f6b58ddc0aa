"""A disturbed BLAS measurement is repeated while the node is idle, and only then."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from bus.process.logs import Log
from bus.process.zygote import write_variables
from bus.wire.messages.control import SlotHello
from worker.machine.blas_repeats import BlasRepeats, RepeatTiming, runner_blas

TIMING = RepeatTiming(idle_s=30.0, pause_s=60.0, most_pause_s=100.0, deadline_s=40.0)
LOG = Log(node="", process="test")
SLOW = ("sleep", "600")


def hello(open_requests: int = 0) -> SlotHello:
    fields = {"slot": "00", "boot": "b", "pid": 1, "phase": "ready", "open_requests": open_requests}
    return SlotHello.model_construct(**{"step": 0, **fields})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "runner-variables.json"
    write_variables(path, {"THREADS": "1"}, repeats=True, files=[])
    return path


def measures(file: Path, threads: int, *, again: bool = False) -> tuple[str, ...]:
    """A command that stores a choice, as the measurement does."""
    text = json.dumps({"variables": {"THREADS": str(threads)}, "repeats": again, "files": []})
    return ("sh", "-c", f"printf '%s' '{text}' > {file}; echo chosen")


def ended(repeats: BlasRepeats, now: float) -> bool:
    """Look until the child has ended; return what the last look did."""
    end_at = time.monotonic() + 30.0
    while repeats.is_measuring and time.monotonic() < end_at:
        if repeats.look([hello()], now):
            return True
    assert not repeats.is_measuring
    return False


def test_it_measures_after_the_node_was_idle_and_says_that_the_variables_changed(
    file: Path,
) -> None:
    repeats = BlasRepeats(file, measures(file, 2), LOG, TIMING)
    for now in (0.0, 29.9):
        assert not repeats.look([hello()], now) and not repeats.is_measuring
    repeats.look([hello(open_requests=1)], 30.0)
    repeats.look([hello()], 59.0)
    assert not repeats.is_measuring, "it was idle for 29 s only"
    repeats.look([hello()], 60.0)
    assert repeats.is_measuring and ended(repeats, 61.0)
    repeats.look([hello()], 1000.0)
    assert not repeats.is_measuring, "nothing is left to repeat"


def test_work_ends_the_measurement_and_each_pause_is_longer(file: Path) -> None:
    repeats = BlasRepeats(file, SLOW, LOG, TIMING)
    repeats.look([], 0.0)
    repeats.look([], 30.0)
    assert repeats.is_measuring
    assert not repeats.look([hello(open_requests=1)], 31.0) and not repeats.is_measuring
    began: list[float] = []
    for now in range(32, 400):
        repeats.look([hello()], float(now))
        if repeats.is_measuring:
            began.append(now)
            repeats.look([hello(open_requests=1)], now + 0.5)
    assert began == [91, 192, 293, 394], "60 s later, then the most"
    repeats.close()


def test_a_measurement_that_takes_too_long_is_ended_and_changes_nothing(file: Path) -> None:
    repeats = BlasRepeats(file, SLOW, LOG, TIMING)
    repeats.look([], 0.0)
    repeats.look([], 30.0)
    assert not repeats.look([], 70.0) and repeats.is_measuring
    assert not repeats.look([], 70.1) and not repeats.is_measuring


def test_a_measurement_with_trouble_again_is_tried_again(file: Path) -> None:
    repeats = BlasRepeats(file, measures(file, 1, again=True), LOG, TIMING)
    repeats.look([], 0.0)
    repeats.look([], 30.0)
    assert not ended(repeats, 31.0), "the variables are the same"
    repeats.look([], 90.0)
    assert not repeats.is_measuring
    repeats.look([], 91.0)
    assert repeats.is_measuring
    repeats.close()
    assert not repeats.is_measuring


def test_an_undisturbed_measurement_is_not_repeated_and_its_files_stay_new(tmp_path: Path) -> None:
    library, file = tmp_path / "one.so", tmp_path / "variables.json"
    library.touch()
    os.utime(library, (0, 0))
    write_variables(file, {"LD_PRELOAD": str(library)}, repeats=False, files=[str(library)])
    repeats = BlasRepeats(file, SLOW, LOG, TIMING)
    repeats.look([], 1000.0)
    assert library.stat().st_mtime > 0
    repeats.look([], 2000.0)
    assert not repeats.is_measuring
    library.unlink()
    repeats.look([], 6000.0)
    assert repeats.is_measuring, "the child makes the missing library"
    repeats.close()


def test_without_a_file_or_a_command_nothing_is_measured(tmp_path: Path, file: Path) -> None:
    assert not runner_blas(tmp_path / "none.json").repeats
    for repeats in (BlasRepeats(tmp_path / "none.json", SLOW, LOG), BlasRepeats(file, (), LOG)):
        for now in (0.0, 100.0, 1000.0):
            assert not repeats.look([], now) and not repeats.is_measuring


def test_a_missing_command_ends_the_tries(file: Path) -> None:
    repeats = BlasRepeats(file, ("/no/such/program",), LOG, TIMING)
    for now in (0.0, 30.0, 500.0):
        assert not repeats.look([], now) and not repeats.is_measuring
