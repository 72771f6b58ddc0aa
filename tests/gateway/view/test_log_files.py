"""The ends of log files: which there are, how much of one is read, what of a line."""

from __future__ import annotations

from pathlib import Path

from gateway.view.watch import log_tail, logged_processes
from gateway.view.watch.log_files import LINE_CHARACTERS, TAIL_BYTES


def test_logs_have_the_names_of_their_processes(tmp_path: Path) -> None:
    for name in ("gateway.log", "runner-00.log", "gateway.log.1", "events.bin"):
        (tmp_path / name).write_text("")
    assert list(logged_processes(tmp_path)) == ["gateway", "runner:00"]
    assert logged_processes(tmp_path / "nowhere") == {}


def test_the_last_whole_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    path.write_bytes(b"one\ntwo\nthr\xffee\nhalf")
    assert log_tail(path, 2) == ["two", "thr\N{REPLACEMENT CHARACTER}ee"]
    assert log_tail(path, 9) == ["one", "two", "thr\N{REPLACEMENT CHARACTER}ee"]


def test_so_much_of_a_file_is_read_and_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    path.write_text("first\n" + "x" * (LINE_CHARACTERS + 1) + "\n" + "y\n" * TAIL_BYTES)
    assert set(log_tail(path, TAIL_BYTES)) == {"y"}
    path.write_text("x" * (LINE_CHARACTERS + 1) + "\nlast\n")
    assert log_tail(path, 9) == ["x" * LINE_CHARACTERS, "last"]
    path.write_text("z" * (TAIL_BYTES + 9) + "\n")
    assert log_tail(path, 9) == []
