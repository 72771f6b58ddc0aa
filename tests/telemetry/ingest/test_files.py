"""Log files that are followed while they are rotated, cut and grow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.ingest.files import PIECE_BYTES, first_place, is_news, pass_over, take
from telemetry.ingest.lines import SentUpTo


class Written:
    """A log as supervisord keeps it: `write` appends, `rotate` begins a new file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gateway.log"
        self.path.touch()

    def write(self, content: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(content)

    def rotate(self) -> None:
        for count in (3, 2, 1):
            older = self.path.with_name(f"gateway.log.{count}")
            newer = self.path.with_name(f"gateway.log.{count - 1}") if count > 1 else self.path
            if newer.exists():
                newer.rename(older)
        self.path.touch()

    @property
    def start(self) -> SentUpTo:
        place = first_place(self.path)
        assert place is not None
        return place


@pytest.fixture
def log(tmp_path: Path) -> Written:
    return Written(tmp_path)


def drained(log: Written, place: SentUpTo) -> tuple[list[bytes], SentUpTo]:
    """Every line behind a place, taken as a sender takes them."""
    lines: list[bytes] = []
    while (found := take(log.path, place, 1 << 20)) is not None:
        lines, place = [*lines, *found.lines], found.place
    return lines, place


def test_lines_are_taken_across_files_also_those_that_a_new_file_begins_within(
    log: Written,
) -> None:
    place = log.start
    log.write(b"one\ntwo\nthr")
    lines, place = drained(log, place)
    assert lines == [b"one\n", b"two\n"]
    log.rotate()
    log.write(b"ee\nfour\n")
    log.rotate()
    log.write(b"five\nsi")
    lines, place = drained(log, place)
    assert lines == [b"three\n", b"four\n", b"five\n"]
    log.write(b"x\n")
    assert drained(log, place)[0] == [b"six\n"]


def test_nothing_is_news_once_all_is_taken(log: Written) -> None:
    log.write(b"one\n")
    place = log.start
    assert is_news(log.path, place)
    _, place = drained(log, place)
    assert not is_news(log.path, place)
    log.rotate()
    assert is_news(log.path, place) and take(log.path, place, 100) is None
    log.path.unlink()
    assert not is_news(log.path, place)


def test_a_file_that_was_cut_is_read_from_its_beginning(log: Written) -> None:
    log.write(b"one\ntwo\n")
    _, place = drained(log, log.start)
    os.truncate(log.path, 0)
    log.write(b"new\n")
    assert drained(log, place)[0] == [b"new\n"]


def test_a_line_that_is_longer_than_a_piece_goes_in_pieces_and_none_of_it_is_lost(
    log: Written,
) -> None:
    long = b"x" * (PIECE_BYTES + 10)
    log.write(long + b"\nnext\n")
    lines, _ = drained(log, log.start)
    assert b"".join(lines) == long + b"\nnext\n" and lines[-1] == b"next\n"


def test_no_more_lines_are_taken_than_asked_for(log: Written) -> None:
    log.write(b"one\ntwo\n")
    found = take(log.path, log.start, 1)
    assert found is not None and found.lines == [b"one\n"]


def test_what_is_too_far_behind_is_passed_over_in_whole_lines_and_counted(log: Written) -> None:
    place = log.start
    log.write(b"one\ntwo\n")
    log.rotate()
    log.write(b"three\nfour\n")
    assert pass_over(log.path, place, 19) is None
    passed = pass_over(log.path, place, 18)
    assert passed is not None and (passed.lines, passed.is_torn) == (1, False)
    assert drained(log, passed.place)[0] == [b"two\n", b"three\n", b"four\n"]
    passed = pass_over(log.path, place, 10)
    assert passed is not None and passed.lines == 3
    assert drained(log, passed.place)[0] == [b"four\n"]


def test_a_file_that_went_unread_is_told_of_and_the_others_are_read(log: Written) -> None:
    log.write(b"one\n")
    place = log.start
    held = log.path.open("rb")  # so that its inode number is not given to another
    for content in (b"two\n", b"three\n", b"four\n", b"five\n"):
        log.rotate()
        log.write(content)
    passed = pass_over(log.path, place)
    assert passed is not None and (passed.lines, passed.is_torn) == (0, True)
    assert drained(log, passed.place)[0] == [b"two\n", b"three\n", b"four\n", b"five\n"]
    assert pass_over(log.path, passed.place) is None
    held.close()


def test_the_first_place_may_be_a_line_near_the_end(log: Written) -> None:
    log.write(b"one\ntwo\nthree\n")
    place = first_place(log.path, 8)
    assert place is not None and drained(log, place)[0] == [b"three\n"]
    assert first_place(log.path, 14) == log.start
    assert first_place(log.path.with_name("none.log")) is None


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(st.binary(min_size=1, max_size=12), st.sampled_from(["rotate", "take"])),
        max_size=24,
    )
)
def test_whatever_is_written_is_taken_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[bytes | str]
) -> None:
    log = Written(tmp_path_factory.mktemp("logs"))
    place, taken, written, rotated = log.start, b"", b"", 0
    for step in steps:
        if isinstance(step, bytes):
            log.write(step)
            written += step
        elif step == "rotate" and rotated < 3:  # more would take unread files away
            log.rotate()
            rotated += 1
        elif step == "take":
            lines, place = drained(log, place)
            taken += b"".join(lines)
            rotated = 0 if place.file == log.start.file else rotated
    log.write(b"\n")
    lines, _ = drained(log, place)
    assert taken + b"".join(lines) == written + b"\n"
