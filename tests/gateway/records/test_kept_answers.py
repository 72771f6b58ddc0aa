"""Kept answers in a file: bounded, in their owner's hands alone, and none at another's cost."""

from __future__ import annotations

import io
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.process.logs import Log
from bus.wire.ids import RequestId
from gateway.dialects.dialect import KeptAnswer
from gateway.dialects.encode import json_bytes
from gateway.records import AnswerBounds, ListedQuery, RecordsFile, kept_answers
from gateway.records.kept_answers import ITEM_BYTES, PLACE_BYTES, ROW_BYTES
from gateway.records.statements import Statement

WIDE = AnswerBounds(rows=1000, bytes=1 << 30, age_s=1e9)


class Shelf:
    """A file, and what is kept in it at 1000 s."""

    def __init__(self, path: Path, bounds: AnswerBounds = WIDE) -> None:
        self.file = RecordsFile(path, Log(node="n1", process="gateway:0", stream=io.StringIO()))
        self.bounds = bounds
        self.path = path

    def keep(self, owner: str, name: str, kept: KeptAnswer, now_s: float = 1000.0) -> None:
        added = kept_answers.added(owner, RequestId(name), kept, now_s)
        removals = kept_answers.pruned(self.bounds, now_s)
        self.file.write([*added, *removals])
        self.file.write(removals)  # items that are shared free less than was reckoned

    def find(self, owner: str, name: str) -> KeptAnswer | None:
        return kept_answers.answer_in(self.file.read(kept_answers.find(owner, RequestId(name))))

    def remove(self, owner: str, name: str) -> int:
        return self.file.write([kept_answers.removed(owner, RequestId(name))])[0]

    def label(self, owner: str, name: str, labels: bytes) -> int:
        return self.file.write([kept_answers.labelled(owner, RequestId(name), labels)])[0]

    def number(self, question: str) -> int:
        [[(found,)]] = self.file.read([Statement(question)])
        return found

    @property
    def count(self) -> int:
        return self.number("SELECT coalesce(sum(rows), 0) FROM answer_tally")

    @property
    def size_bytes(self) -> int:
        return self.number("SELECT coalesce(sum(bytes), 0) FROM answer_tally")


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "records.sqlite")


def _kept(size: int, *items: bytes) -> KeptAnswer:
    return KeptAnswer(b"x" * size, items, b"", b"{}")


def test_nothing_that_is_asked_goes_through_all_answers_or_items_of_an_owner(
    shelf: Shelf,
) -> None:
    shelf.keep("a", "1", _kept(10, b"{}"))
    adding = kept_answers.added("a", RequestId("2"), _kept(10, b"{}", b"[]"), 1000.0)
    finding = kept_answers.find("a", RequestId("1"))
    for one in (*adding, *finding):
        steps = shelf.file.read([Statement(f"EXPLAIN QUERY PLAN {one.text}", one.values)])[0]
        for *_, step in steps:
            if " item " in step or " answer " in step:
                by = step.partition("(")[2]
                assert any(f"{name}=" in by for name in ("digest", "request", "rowid")), step


def test_an_owner_finds_its_answers_whole_and_no_others(shelf: Shelf) -> None:
    kept = KeptAnswer(b'{"\xc3\xa9":1}', (b"{}", b"[]", b"{}"), b'{"model":"m"}', b'{"a":"b"}')
    shelf.keep("a", "1", kept)
    assert shelf.find("a", "1") == kept, "items in their order, also one that is there twice"
    assert shelf.find("b", "1") is None and not shelf.remove("b", "1")
    assert not shelf.label("b", "1", b"{}")
    assert shelf.remove("a", "1") and not shelf.remove("a", "1")
    assert (shelf.count, shelf.size_bytes) == (0, 0)
    assert shelf.number("SELECT count(*) FROM item") == 0


def test_labels_are_changed_and_counted(shelf: Shelf) -> None:
    shelf.keep("a", "1", _kept(10))
    before = shelf.size_bytes
    assert shelf.label("a", "1", b'{"a":"b"}') == 1
    assert shelf.find("a", "1") == KeptAnswer(b"x" * 10, (), b"", b'{"a":"b"}')
    assert shelf.size_bytes == before + 7


def test_a_conversation_is_kept_once_however_many_answers_share_it(shelf: Shelf) -> None:
    items = tuple(b"%d" % count * 1000 for count in range(50))
    for turn in range(1, 51):
        shelf.keep("a", str(turn), _kept(10, *items[:turn]))
    assert shelf.number("SELECT count(*) FROM item") == 50
    whole = sum(len(item) + ITEM_BYTES for item in items)
    places = sum(range(51)) * PLACE_BYTES
    assert shelf.size_bytes == whole + places + 50 * (ROW_BYTES + 12)
    for turn in range(2, 51):
        assert shelf.remove("a", str(turn))
    assert shelf.find("a", "1") == _kept(10, items[0])
    assert shelf.number("SELECT count(*) FROM item") == 1


def test_what_two_owners_said_alike_is_each_ones_own(shelf: Shelf) -> None:
    for owner in "ab":
        shelf.keep(owner, owner, _kept(1, b"the same"))
    shelf.remove("a", "a")
    assert shelf.find("b", "b") == _kept(1, b"the same")


def test_the_oldest_goes_when_there_are_too_many_or_too_much_or_too_old(tmp_path: Path) -> None:
    for number, bounds in enumerate(
        (
            AnswerBounds(rows=2, bytes=1 << 30, age_s=1e9),
            AnswerBounds(rows=100, bytes=2 * (1000 + ROW_BYTES + 2), age_s=1e9),
            AnswerBounds(rows=100, bytes=1 << 30, age_s=25),
        )
    ):
        shelf = Shelf(tmp_path / f"{number}.sqlite", bounds)
        for count, name in enumerate("123"):
            shelf.keep("a", name, _kept(1000), now_s=1000 + 20 * count)
        assert [shelf.find("a", name) is None for name in "123"] == [True, False, False]


def test_an_owner_who_keeps_much_pays_for_it_alone(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "r.sqlite", AnswerBounds(rows=10, bytes=20_000, age_s=1e9))
    shelf.keep("quiet", "q", _kept(2000))
    for count in range(30):
        shelf.keep("many", f"m{count}", _kept(1))
    for count in range(30):
        shelf.keep("large", f"l{count}", _kept(6000))
    assert shelf.find("quiet", "q") is not None
    assert shelf.find("many", "m29") is not None and shelf.find("large", "l29") is not None
    assert shelf.count <= 10 and shelf.size_bytes <= 20_000


def test_a_file_of_the_version_before_is_brought_forward_with_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    shelf = Shelf(path)
    shelf.keep("a", "1", _kept(10, b"{}"))
    shelf.file.close()
    with sqlite3.connect(path) as before:  # as version 1 left it
        for (name,) in before.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'request%' "
            "AND name NOT LIKE 'sqlite%'"
        ).fetchall():
            before.execute(f"DROP TABLE {name}")
        before.execute("PRAGMA user_version = 1")
    before.close()
    again = Shelf(path)
    assert again.find("a", "1") is None
    again.keep("a", "1", _kept(10, b"{}"))
    assert again.find("a", "1") == _kept(10, b"{}")


STEPS = st.tuples(
    st.sampled_from(["keep", "keep", "remove", "label"]),
    st.sampled_from("abc"),
    st.sampled_from("12345"),
    st.integers(0, 900),
    st.lists(st.integers(0, 4), max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_what_is_counted_is_what_is_kept_and_within_bounds(
    steps: list[tuple[str, str, str, int, list[int]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bounds = AnswerBounds(rows=6, bytes=9000, age_s=1e9)
        shelf = Shelf(Path(folder) / "records.sqlite", bounds)
        for verb, owner, name, size, items in steps:
            mine = f"{owner}{name}"
            if verb == "keep":
                kept = _kept(size, *(b"i" * 100 * item for item in items))
                shelf.keep(owner, mine, kept)
                assert shelf.find(owner, mine) == kept, "what was just kept is there"
            elif verb == "label":
                shelf.label(owner, mine, b"{}" + b" " * (size % 9))
            else:
                shelf.remove(owner, mine)
                assert shelf.find(owner, mine) is None
            found = [(o, f"{o}{n}", shelf.find(o, f"{o}{n}")) for o in "abc" for n in "12345"]
            answers = [(o, kept) for o, _, kept in found if kept is not None]
            own = {(o, item) for o, kept in answers for item in kept.items}
            expected = sum(
                len(kept.answer) + len(kept.labels) + ROW_BYTES + PLACE_BYTES * len(kept.items)
                for _, kept in answers
            ) + sum(len(item) + ITEM_BYTES for _, item in own)
            assert shelf.size_bytes == expected
            assert shelf.count == len(answers) <= 6
            assert shelf.size_bytes <= 9000 or verb == "label"
            assert shelf.number("SELECT count(*) FROM item") == len(own)
        shelf.file.close()


def test_a_list_has_pages_in_both_orders_by_model_and_labels(shelf: Shelf) -> None:
    for count in range(30):
        name, model = f"r{count}", "ab"[count % 2]
        listed = json_bytes({"id": name, "created": 1763640000 + count / 7, "model": model})
        labels = b"" if count % 5 else json_bytes({"five": "yes", 'a "b"': str(count)})
        shelf.keep("a", name, KeptAnswer(b"x", (), listed, labels))
    shelf.keep("a", "unlisted", _kept(1))
    shelf.keep("b", "of another", KeptAnswer(b"x", (), listed, b""))

    def pages(**more: Any) -> list[str]:
        """All of a list, read in pages of 4."""
        found: list[str] = []
        while True:
            query = ListedQuery(**{"limit": 4, "descends": False, **more})
            [rows] = shelf.file.read([kept_answers.listed("a", query)])
            found += [row[0] for row in rows]
            if len(rows) < 4:
                return found
            last = shelf.find("a", found[-1])
            assert last is not None
            more["after"] = last.listed

    every = [f"r{count}" for count in range(30)]
    assert pages() == every and pages(descends=True) == every[::-1]
    assert pages(model="b") == every[1::2]
    assert pages(labels=(("five", "yes"),)) == every[::5]
    assert pages(labels=(("five", "yes"), ('a "b"', "10"))) == ["r10"]
    assert pages(labels=(("five", "no"),)) == []
