"""Log lines as people read them."""

from __future__ import annotations

import json

from bus.process.logs import file_of, process_of
from gateway.cli.output.log_lines import parse_line, tail


def test_our_own_line_is_taken_apart_and_its_fields_follow_the_message() -> None:
    record = {
        "time": "2026-11-26T10:00:00.250Z",
        "level": "warning",
        "message": "late",
        "node": "n1",
        "process": "worker",
        "slot": "03",
    }
    line = parse_line(json.dumps(record), "else")
    assert (line.level, line.process, line.message) == ("warning", "worker", "late")
    assert line.text().endswith("warning  worker       late slot=03")
    assert line.text()[:12].endswith(".250")


def test_whatever_else_a_library_prints_stands_as_it_is() -> None:
    for text in ("Traceback (most recent call last):", '{"half', "[1]", '{"no": "message"}'):
        line = parse_line(text, "bus")
        assert (line.at, line.message, line.process) == (None, text, "bus")


def test_a_tail_shows_a_repeated_line_once_and_says_how_often() -> None:
    shown = tail("a\nb\nb\nb\n\nc\n", "bus", 2).splitlines()
    assert [line.split()[1:] for line in shown] == [["b", "(3", "times)"], ["c"]]


def test_a_slots_file_and_name_map_to_each_other() -> None:
    for process in ("bus", "runner:03"):
        assert process_of(file_of(process)) == process
    assert file_of("runner:03") == "runner-03.log"
