"""Conversations in a file: in order, once by name, their owner's alone, in one measure with
answers."""

from __future__ import annotations

import io
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.process.logs import Log
from bus.wire.ids import RequestId
from gateway.dialects.dialect import KeptAnswer, NamedItem
from gateway.records import AnswerBounds, RecordsFile, kept_answers
from gateway.records.conversations import table
from gateway.records.conversations.table import ROW_BYTES, OfOwner
from gateway.records.kept_answers import ITEM_BYTES, PLACE_BYTES
from gateway.records.kept_answers import ROW_BYTES as ANSWER_BYTES
from gateway.records.schema import MIGRATIONS
from gateway.records.statements import Statement

WIDE = AnswerBounds(rows=1000, bytes=1 << 30, age_s=1e9)
PLACE = 48


class Shelf:
    """A file, and what is kept in it at 1000 s."""

    def __init__(self, path: Path, bounds: AnswerBounds = WIDE) -> None:
        self.file = RecordsFile(path, Log(node="n1", process="gateway:0", stream=io.StringIO()))
        self.bounds = bounds

    def _write(self, statements: Sequence[Statement], now_s: float) -> list[int]:
        return self.file.write([*statements, *kept_answers.pruned(self.bounds, now_s)])

    def begin(self, owner: str, name: str, *items: NamedItem, now_s: float = 1000.0) -> None:
        self._write(table.begun(OfOwner(owner, RequestId(name)), b"{}", items, now_s), now_s)

    def add(self, owner: str, name: str, *items: NamedItem, now_s: float = 1000.0) -> bool:
        which = OfOwner(owner, RequestId(name))
        return self._write(table.added(which, items, now_s, run=RequestId("by")), now_s)[0] > 0

    def end(self, owner: str, name: str, run: str, job: str, *items: NamedItem) -> None:
        which = OfOwner(owner, RequestId(name))
        added = table.added(which, items, 1000.0, run=RequestId(run), job=RequestId(job))
        self._write(added, 1000.0)

    def keep(self, owner: str, name: str, kept: KeptAnswer, now_s: float = 1000.0) -> None:
        self._write(kept_answers.added(owner, RequestId(name), kept, now_s), now_s)

    def items(self, owner: str, name: str, job: str = "") -> list[bytes] | None:
        which = OfOwner(owner, RequestId(name))
        there, rows = self.file.read([table.find(which), table.contents(which, job)])
        return [content for (content,) in rows] if there else None

    def page(self, owner: str, name: str, limit: int, after: str, descends: bool) -> list[bytes]:
        which = OfOwner(owner, RequestId(name))
        [rows] = self.file.read([table.page(which, limit, after, descends=descends)])
        return [content for (content,) in rows]

    def number(self, question: str) -> int:
        [[(found,)]] = self.file.read([Statement(question)])
        return found

    @property
    def tally(self) -> tuple[int, int]:
        return (
            self.number("SELECT coalesce(sum(rows), 0) FROM answer_tally"),
            self.number("SELECT coalesce(sum(bytes), 0) FROM answer_tally"),
        )


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "records.sqlite")


def named(*names: str) -> list[NamedItem]:
    return [(name, name.encode() * 10) for name in names]


def contents(*names: str) -> list[bytes]:
    return [content for _, content in named(*names)]


def test_items_are_told_in_their_order_to_their_owner_alone(shelf: Shelf) -> None:
    shelf.begin("a", "c", *named("i1", "i2"))
    assert shelf.add("a", "c", *named("i3"))
    assert shelf.items("a", "c") == contents("i1", "i2", "i3")
    assert shelf.items("b", "c") is None and not shelf.add("b", "c", *named("i4"))
    assert shelf.file.write([table.removed(OfOwner("b", RequestId("c")))]) == [0]
    assert shelf.items("a", "c") == contents("i1", "i2", "i3")
    assert shelf.number("SELECT count(*) FROM item") == 3, "what was not added leaves nothing"
    assert shelf.file.write([table.removed(OfOwner("a", RequestId("c")))]) == [1]
    assert (shelf.tally, shelf.number("SELECT count(*) FROM item")) == ((0, 0), 0)
    assert shelf.number("SELECT count(*) FROM conversation_item") == 0


def test_pages_go_on_behind_a_name_in_both_orders(shelf: Shelf) -> None:
    shelf.begin("a", "c", *named("1", "2", "3", "4", "5"))
    assert shelf.page("a", "c", 2, "", False) == contents("1", "2")
    assert shelf.page("a", "c", 2, "2", False) == contents("3", "4")
    assert shelf.page("a", "c", 9, "4", True) == contents("3", "2", "1")
    assert shelf.page("a", "c", 9, "none", False) == []


def test_a_name_is_there_once_and_one_content_may_have_several(shelf: Shelf) -> None:
    shelf.begin("a", "c", ("x", b"same"), ("y", b"same"))
    shelf.add("a", "c", ("x", b"other"), ("z", b"same"))
    assert shelf.items("a", "c") == [b"same"] * 3
    assert shelf.number("SELECT count(*) FROM item") == 1
    which = OfOwner("a", RequestId("c"))
    shelf.file.write(table.item_removed(which, "y", 1000.0))
    assert shelf.items("a", "c") == [b"same"] * 2
    assert shelf.number("SELECT items FROM conversation") == 2


def test_a_run_that_was_begun_anew_adds_in_the_place_of_the_one_before(shelf: Shelf) -> None:
    shelf.begin("a", "c", *named("first"))
    shelf.end("a", "c", "req-1", "req-1", *named("in1", "out1"))
    shelf.end("a", "c", "req-10", "req-10", *named("other"))
    assert shelf.items("a", "c", job="req-1") == contents("first", "other")
    shelf.end("a", "c", "req-1.2", "req-1", *named("in2", "out2"))
    assert shelf.items("a", "c") == contents("first", "other", "in2", "out2")
    shelf.end("a", "c", "req-1.2", "req-1", *named("in2", "out2"))
    assert shelf.items("a", "c") == contents("first", "other", "in2", "out2")


def test_answers_share_the_items_of_their_conversation(shelf: Shelf) -> None:
    shelf.begin("a", "c", *named("1", "2"))
    before = shelf.tally[1]
    shelf.keep("a", "r", KeptAnswer(b"x", tuple(contents("1", "2"))))
    assert shelf.tally == (2, before + ANSWER_BYTES + 1 + 2 * PLACE_BYTES)
    shelf.file.write([table.removed(OfOwner("a", RequestId("c")))])
    kept = kept_answers.answer_in(shelf.file.read(kept_answers.find("a", RequestId("r"))))
    assert kept == KeptAnswer(b"x", tuple(contents("1", "2"))), "an answer outlives it"


def test_what_was_used_last_stays_longest_whatever_the_clock_says(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "r.sqlite", AnswerBounds(rows=3, bytes=1 << 30, age_s=1e9))
    shelf.begin("a", "old", now_s=5000.0)
    shelf.keep("a", "r1", KeptAnswer(b"x", ()), now_s=10.0)
    shelf.keep("a", "r2", KeptAnswer(b"x", ()), now_s=9.0)
    assert shelf.add("a", "old", *named("i"), now_s=8.0), "used again"
    shelf.begin("a", "new", now_s=7.0)
    assert shelf.items("a", "old") is not None and shelf.items("a", "new") is not None
    left = shelf.file.read([Statement("SELECT request FROM answer")])[0]
    assert [name for (name,) in left] == ["r2"]
    shelf.keep("a", "r3", KeptAnswer(b"x", ()), now_s=6.0)
    shelf.keep("a", "r4", KeptAnswer(b"x", ()), now_s=6.0)
    assert shelf.items("a", "old") is None and shelf.items("a", "new") is not None


def test_one_that_nobody_has_used_for_long_goes(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "r.sqlite", AnswerBounds(rows=9, bytes=1 << 30, age_s=100.0))
    shelf.begin("a", "1")
    shelf.begin("a", "2")
    shelf.add("a", "1", *named("i"), now_s=1060.0)
    shelf.add("a", "1", *named("j"), now_s=1120.0)
    assert shelf.items("a", "1") == contents("i", "j") and shelf.items("a", "2") is None


def test_an_owner_who_keeps_much_pays_for_it_alone(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "r.sqlite", AnswerBounds(rows=8, bytes=30_000, age_s=1e9))
    shelf.begin("quiet", "q", ("i", b"x" * 4000))
    for count in range(20):
        shelf.begin("many", f"m{count}")
        shelf.keep("large", f"l{count}", KeptAnswer(b"x" * 9000, ()))
    assert shelf.items("quiet", "q") is not None and shelf.items("many", "m19") is not None
    rows, size_bytes = shelf.tally
    assert rows <= 8 and size_bytes <= 30_000


def test_a_file_of_version_3_is_brought_forward_with_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    kept = KeptAnswer(b"answer", (b"one", b"two"), b"", b"{}")
    with sqlite3.connect(path) as before:
        for added in MIGRATIONS[:3]:
            for text in added:
                before.execute(text)
        before.execute("PRAGMA user_version = 3")
        before.execute(
            "INSERT INTO answer (request, owner, kept_at_s, answer, listed, labels, row_bytes, "
            "size_bytes) VALUES ('r', 'a', 1000, CAST('answer' AS BLOB), x'', "
            "CAST('{}' AS BLOB), 256, 300)"
        )
        for place, word in enumerate(("one", "two")):
            before.execute(
                "INSERT INTO item (owner, digest, content, item_bytes) "
                f"VALUES ('a', '{word}', CAST('{word}' AS BLOB), 103)"
            )
            before.execute(f"INSERT INTO answer_item VALUES (1, {place}, {place + 1})")
    before.close()
    shelf = Shelf(path)
    found = kept_answers.answer_in(shelf.file.read(kept_answers.find("a", RequestId("r"))))
    assert found == kept
    assert shelf.number("PRAGMA user_version") == len(MIGRATIONS) == 7
    assert shelf.tally == (1, 256 + 2 * 103)
    shelf.begin("a", "c", *named("i"))
    assert shelf.items("a", "c") == contents("i") and shelf.tally[0] == 2


STEPS = st.tuples(
    st.sampled_from(["begin", "add", "add", "end", "drop", "remove", "keep", "label"]),
    st.sampled_from("ab"),
    st.sampled_from("123"),
    st.lists(st.tuples(st.sampled_from("uvwxyz"), st.integers(0, 4)), max_size=4),
)


class Model:
    """What ought to be in a file, by the plainest means, and the file."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.there: dict[tuple[str, str], dict[str, tuple[bytes, str]]] = {}
        self.labels: dict[tuple[str, str], bytes] = {}
        self.answers: dict[tuple[str, str], list[bytes]] = {}

    def do(self, verb: str, owner: str, name: str, items: list[NamedItem]) -> None:
        shelf, key, which = self.shelf, (owner, name), OfOwner(owner, RequestId(name))
        match verb:
            case "begin" if key not in self.there:
                shelf.begin(owner, name, *items)
                self.there[key], self.labels[key] = {}, b"{}"
                self._add(key, items, "")
            case "add":
                assert shelf.add(owner, name, *items) == (key in self.there)
                self._add(key, items, "by")
            case "end":
                shelf.end(owner, name, "req", "req", *items)
                self._add(key, items, "req")
            case "drop":
                shelf.file.write(table.item_removed(which, "u", 1000.0))
                self.there.get(key, {}).pop("u", None)
            case "remove":
                shelf.file.write([table.removed(which)])
                self.there.pop(key, None)
            case "label":
                self.labels[key] = b"{}" + b" " * len(items)
                shelf.file.write(table.labelled(which, self.labels[key], 1000.0))
            case "keep":
                self.answers[key] = [content for _, content in items]
                shelf.keep(owner, name, KeptAnswer(b"x", tuple(self.answers[key])))
            case _:
                pass

    def _add(self, key: tuple[str, str], items: list[NamedItem], run: str) -> None:
        if key in self.there:
            for name, content in items:
                self.there[key].setdefault(name, (content, run))

    def check(self) -> None:
        shelf = self.shelf
        for (owner, name), there in self.there.items():
            assert shelf.items(owner, name) == [content for content, _ in there.values()]
        contents = {(o, c) for (o, _), there in self.there.items() for c, _ in there.values()}
        contents |= {(o, c) for (o, _), own in self.answers.items() for c in own}
        size_bytes = sum(len(content) + ITEM_BYTES for _, content in contents)
        for key, there in self.there.items():
            size_bytes += ROW_BYTES + len(self.labels[key])
            size_bytes += sum(PLACE + len(name) + len(run) for name, (_, run) in there.items())
        size_bytes += sum(ANSWER_BYTES + 1 + PLACE_BYTES * len(a) for a in self.answers.values())
        assert shelf.tally == (len(self.there) + len(self.answers), size_bytes)
        assert shelf.number("SELECT count(*) FROM item") == len(contents)
        sizes = shelf.number("SELECT coalesce(sum(size_bytes), 0) FROM conversation")
        assert sizes == sum(len(c) for there in self.there.values() for c, _ in there.values())


@settings(max_examples=80, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_what_is_counted_is_what_is_there(
    steps: list[tuple[str, str, str, list[tuple[str, int]]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(Path(folder) / "records.sqlite")
        model = Model(shelf)
        for verb, owner, number, told in steps:
            items = [(name, b"i" * 10 * size) for name, size in told]
            model.do(verb, owner, f"{owner}{number}", items)
            model.check()
        shelf.file.close()
