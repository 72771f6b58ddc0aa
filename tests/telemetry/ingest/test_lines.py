"""What is ahead of a place in rotated files, and each line as it is sent."""

from __future__ import annotations

import json

import pytest

from telemetry.ingest.lines import LogSpan, SentUpTo, ahead, as_sent, moved, whole_lines

AT = "2026-11-26T10:00:00.250Z"
FILES = [(7, 30), (8, 20), (9, 10)]
"""Three files by inode number, oldest first, with their bytes."""


@pytest.mark.parametrize(
    ("place", "spans"),
    [
        (SentUpTo(9, 4), [LogSpan(9, 4, 10)]),
        (SentUpTo(8, 20), [LogSpan(8, 20, 20), LogSpan(9, 0, 10)]),
        (SentUpTo(7, 5), [LogSpan(7, 5, 30), LogSpan(8, 0, 20), LogSpan(9, 0, 10)]),
        (SentUpTo(9, 11), [LogSpan(9, 0, 10)]),
        (SentUpTo(3, 5), [LogSpan(7, 0, 30), LogSpan(8, 0, 20), LogSpan(9, 0, 10)]),
    ],
)
def test_ahead_is_the_rest_of_a_file_and_the_newer_ones(
    place: SentUpTo, spans: list[LogSpan]
) -> None:
    assert ahead(FILES, place) == spans


def test_a_place_moves_from_file_to_file() -> None:
    spans = ahead(FILES, SentUpTo(7, 25))
    assert [moved(spans, count) for count in (0, 5, 6, 25, 26, 35)] == [
        SentUpTo(7, 25),
        SentUpTo(7, 30),
        SentUpTo(8, 1),
        SentUpTo(8, 20),
        SentUpTo(9, 1),
        SentUpTo(9, 10),
    ]


@pytest.mark.parametrize(
    ("content", "most_bytes", "is_cut", "lines"),
    [
        (b"one\ntwo\nthr", 100, False, [b"one\n", b"two\n"]),
        (b"one\ntwo\n", 8, False, [b"one\n", b"two\n"]),
        (b"one\ntwo\n", 7, False, [b"one\n"]),
        (b"one\ntwo\n", 1, False, [b"one\n"]),
        (b"thr", 100, False, []),
        (b"", 100, False, []),
        (b"a line without end", 1, True, [b"a line without end"]),
    ],
)
def test_lines_are_whole_and_one_at_least(
    content: bytes, most_bytes: int, is_cut: bool, lines: list[bytes]
) -> None:
    assert whole_lines(content, most_bytes, is_cut=is_cut) == lines


def test_a_line_of_ours_goes_as_it_is() -> None:
    line = b'{"time": "t", "message": "m", "node": "n1", "process": "gateway/2"}'
    assert as_sent(line + b"\n", "n1", "gateway", AT) == line


def test_a_line_says_who_wrote_it() -> None:
    told = json.loads(as_sent(b'{"message": "m", "process": "p"}\n', "n1", "bus", AT))
    assert told == {"message": "m", "process": "p", "node": "n1"}


NO_OBJECTS = (
    "Segmentation fault", '{"message": "torn', "[1]", '{"message": NaN}', '"text"', "[" * 9999,
)  # fmt: skip


@pytest.mark.parametrize("line", NO_OBJECTS)
def test_what_is_no_object_goes_as_the_message_of_one(line: str) -> None:
    told = json.loads(as_sent(line.encode() + b"\r\n", "n1", "runner:03", AT))
    assert told == {
        "time": AT,
        "level": "info",
        "message": line,
        "node": "n1",
        "process": "runner:03",
    }


def test_bytes_that_are_no_text_and_empty_lines_break_nothing() -> None:
    assert json.loads(as_sent(b"\xff!\n", "n1", "bus", AT))["message"] == "\ufffd!"
    assert as_sent(b"  \n", "n1", "bus", AT) == b""
