from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bus.process.flight import PLACE_BYTES, FlightFile, read_flight, take_flight

ROOT = Path(__file__).resolve().parents[2]


def test_the_last_entries_are_there_in_order_and_taken_once(tmp_path: Path) -> None:
    flight = FlightFile(tmp_path, "runner:00", 4)
    for number in range(6):
        flight.add({"at_s": float(number), "phase": "prefill"})
    flight.close()
    assert [entry["at_s"] for entry in take_flight(tmp_path, "runner:00", os.getpid())] == [
        2,
        3,
        4,
        5,
    ]
    assert not list(tmp_path.iterdir())
    assert take_flight(tmp_path, "runner:00", os.getpid()) == ()


def test_an_entry_that_renews_takes_the_place_of_the_last_and_reading_takes_nothing(
    tmp_path: Path,
) -> None:
    flight = FlightFile(tmp_path, "runner:00", 2)
    flight.add({"step": 1}, True)  # there is none to renew
    flight.add({"step": 2})
    for step in range(3, 9):
        flight.add({"step": step}, True)
    for _ in range(2):
        found = read_flight(tmp_path, "runner:00", os.getpid())
        assert found == ({"step": 1}, {"step": 8})
    flight.add({"step": 9})
    assert take_flight(tmp_path, "runner:00", os.getpid()) == ({"step": 8}, {"step": 9})


@pytest.mark.parametrize("length", [10, PLACE_BYTES, 100_000])
def test_an_entry_of_any_length_harms_no_other(tmp_path: Path, length: int) -> None:
    flight = FlightFile(tmp_path, "runner:00", 4)
    flight.add({"phase": "created"})
    flight.add({"phase": "error", "message": "x" * length})
    flight.add({"phase": "odd", "many": list(range(length))})
    flight.add({"phase": "idle"})
    found = take_flight(tmp_path, "runner:00", os.getpid())
    assert found[0] == {"phase": "created"} and found[-1] == {"phase": "idle"}
    assert found[1]["message"] == "x" * min(length, 200 if length > 900 else length)


def test_what_a_killed_process_wrote_last_is_there(tmp_path: Path) -> None:
    code = f"""
        import os, signal
        from pathlib import Path
        from bus.process.flight import FlightFile
        flight = FlightFile(Path({str(tmp_path)!r}), "runner:00", 8)
        flight.add({{"phase": "created"}})
        flight.add({{"phase": "prefill"}})
        print(os.getpid(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE, check=False
    )
    found = take_flight(tmp_path, "runner:00", int(done.stdout))
    assert [entry["phase"] for entry in found] == ["created", "prefill"]


def test_an_entry_that_was_being_written_is_left_out(tmp_path: Path) -> None:
    flight = FlightFile(tmp_path, "runner:00", 4)
    flight.add({"phase": "created"})
    flight.add({"phase": "prefill"})
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[PLACE_BYTES : PLACE_BYTES + 8] = bytes(8)
    path.write_bytes(data)
    assert take_flight(tmp_path, "runner:00", os.getpid()) == ({"phase": "created"},)
