from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from runner.text.stops import Automaton, Scan

LETTERS = st.text(alphabet="ab<c", max_size=40)
STOPS = st.lists(st.text(alphabet="ab<c", min_size=1, max_size=6), min_size=1, max_size=16)


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)]


def oracle(text: str, stops: list[str]) -> tuple[str, str | None, str]:
    """The naive reading: grow the text by one character until it ends with a stop."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            found = max(ending, key=len)
            return text[: end - len(found)], found, text[end:]
    return text, None, ""


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None, str]:
    scan = Scan(Automaton(stops))
    said = ""
    for place, piece in enumerate(pieces):
        clear, found, rest = scan.feed(piece)
        said += clear
        if found is not None:
            return said, found, rest + "".join(pieces[place + 1 :])
    return said + scan.flush(), None, ""


@given(LETTERS, STOPS, st.lists(st.integers(0, 40), max_size=12))
def test_however_a_text_is_cut_the_stop_found_is_the_naive_one(
    text: str, stops: list[str], places: list[int]
) -> None:
    assert run(cut(text, places), stops) == oracle(text, stops)


@given(LETTERS, STOPS)
def test_only_text_that_may_begin_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    scan = Scan(Automaton(stops))
    for letter in text:
        _, found, _ = scan.feed(letter)
        if found is not None:
            return
        held = scan.held_text
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_of_two_stops_the_one_complete_first_wins_and_the_longer_of_equals() -> None:
    assert run(["xabc"], ["abc", "b"]) == ("xa", "b", "c")
    assert run(["xab", "c"], ["bc", "abc"]) == ("x", "abc", "")


def test_a_scan_without_strings_holds_nothing() -> None:
    scan = Scan(Automaton(()))
    assert scan.feed("anything") == ("anything", None, "")
    assert scan.flush() == ""
