"""The records file on real disks: who writes it, who kills whom, and what is wrong with it."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bus.process.logs import Log
from gateway.records import RecentQuery, RecordsFile, RecordsUnavailable
from gateway.records.file import ASIDE_AT_MOST
from gateway.records.request_log import inserted, recent, shown
from gateway.records.schema import VERSION
from gateway.records.statements import Statement
from tests.harness.gateway_testbed import ROOT, eventually
from tests.harness.records_writer import row
from tests.harness.small_disks import filled, needs_mounts, remounted, small_disk

PROVING = bool(os.environ.get("SHOAL_PROVE"))
ALL = recent(RecentQuery(limit=1_000_000))
NOBODY = 65534


class Disk:
    """A folder with a records file, and what was logged of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "records.sqlite"
        self.said = io.StringIO()
        self.log = Log(node="n1", process="gateway:0", stream=self.said)

    def file(self, **more: Any) -> RecordsFile:
        return RecordsFile(self.path, self.log, **more)

    def lines(self, level: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.said.getvalue().splitlines()]
        return [one for one in found if one["level"] == level]

    def aside(self) -> list[Path]:
        found = self.path.parent.glob("records.sqlite.*-*")
        return [one for one in found if not one.name.endswith(("-wal", "-shm"))]

    def names(self) -> list[str]:
        file = self.file()
        found = names(file)
        file.close()
        return found

    def fill(self, *names: str) -> None:
        file = self.file()
        file.write([inserted(row(name)) for name in names])
        file.close()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def names(file: RecordsFile) -> list[str]:
    """The requests of a file, the first first."""
    (rows,) = file.read([ALL])
    return [shown(values)["request"] for values in reversed(rows)]


def test_what_was_written_is_there_after_the_file_was_closed(disk: Disk) -> None:
    disk.fill("a", "b")
    assert disk.names() == ["a", "b"]


def test_nobody_else_may_read_the_file_nor_what_lies_beside_it(disk: Disk) -> None:
    old = os.umask(0)
    try:
        file = disk.file()
        file.write([inserted(row("a"))])
    finally:
        os.umask(old)
    found = {one.name: stat.S_IMODE(one.stat().st_mode) for one in disk.path.parent.iterdir()}
    file.close()
    assert set(found) == {f"records.sqlite{suffix}" for suffix in ("", "-wal", "-shm", ".lock")}
    assert set(found.values()) == {0o600}


def test_statements_are_written_all_or_none(disk: Disk) -> None:
    file = disk.file()
    with pytest.raises(sqlite3.IntegrityError):
        file.write([inserted(row("a")), inserted(row("b", seconds=float("nan")))])
    assert names(file) == []
    file.write([inserted(row("c"))])
    assert names(file) == ["c"]
    file.close()


def test_what_is_acknowledged_to_somebody_is_written_so_that_power_may_go(disk: Disk) -> None:
    file = disk.file()
    how = Statement("PRAGMA synchronous")  # 1: NORMAL, 2: FULL
    file.write([inserted(row("a"))])
    assert file.read([how]) == [[(1,)]]
    file.write([inserted(row("b"))], durable=True)
    assert file.read([how]) == [[(2,)]]
    file.close()


def test_a_file_of_which_much_was_removed_gets_smaller(disk: Disk) -> None:
    file = disk.file()
    big = dict.fromkeys(("model", "client", "key", "instance", "finish", "error"), "x" * 200)
    file.write([inserted(row("a", **big)) for _ in range(5000)])
    file.write([Statement("DELETE FROM request")])
    pages = Statement("PRAGMA page_count")
    [[(before,)]] = file.read([pages])
    for _ in range(20):
        file.shrink()
    [[(after,)]] = file.read([pages])
    assert before > 1500 and after <= 1100
    file.close()


def test_a_text_whose_bits_flipped_is_told_as_far_as_it_is_one(disk: Disk) -> None:
    disk.fill("a")
    connection = sqlite3.connect(disk.path)
    connection.execute("UPDATE request SET request = CAST(x'41ff42' AS TEXT)")
    connection.commit()
    connection.close()
    assert disk.names() == ["A\ufffdB"]


# --- a file that is no good ----------------------------------------------------------------------


def overwritten(path: Path) -> None:
    """No database at all."""
    path.write_bytes(b"what people wrote" * 1000)


def cut_off(path: Path) -> None:
    """The second half is missing."""
    os.truncate(path, path.stat().st_size // 2)


def scrambled(path: Path) -> None:
    """Every page but the first holds nonsense."""
    data = path.read_bytes()
    path.write_bytes(data[:4096] + random.Random(1).randbytes(len(data) - 4096))


def later(path: Path) -> None:
    """Of a version that is to come."""
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()


BAD = {"broken": (overwritten, cut_off, scrambled), "newer": (later,)}


@pytest.mark.parametrize(
    ("word", "spoil"), [(word, one) for word, ways in BAD.items() for one in ways]
)
def test_a_file_that_is_no_good_is_set_aside_and_a_fresh_one_serves(
    disk: Disk, word: str, spoil: Any
) -> None:
    disk.fill(*(f"old-{count}" for count in range(500)))
    spoil(disk.path)
    spoiled = disk.path.read_bytes()
    file = disk.file()
    file.write([inserted(row("new"))])
    assert names(file) == ["new"]
    file.close()
    (aside,) = disk.aside()
    assert aside.name.startswith(f"records.sqlite.{word}-")
    assert aside.read_bytes() == spoiled
    (line,) = disk.lines("critical")
    assert "moved it aside" in line["message"] and line["aside"] == str(aside)


def test_a_flipped_bit_in_the_schema_never_ends_the_records(disk: Disk) -> None:
    """SQLite quotes the schema in its message, which then may be no text for Python to decode."""
    disk.fill("kept")
    whole, chance = disk.path.read_bytes(), random.Random(8)
    begins = [at for at in range(len(whole)) if whole.startswith(b"CREATE T", at)][::9]
    aside = 0
    for begin in begins:
        for bit in (7, chance.randrange(7)):  # the highest makes it no UTF-8
            at = begin + 7 + chance.randrange(60)
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            disk.path.write_bytes(flipped)
            found = disk.names()
            assert found in (["kept"], []), (at, bit)
            disk.fill("more")
            assert disk.names() == ["more", *found], (at, bit)
            aside += not found
            for one in disk.path.parent.iterdir():
                one.unlink()
    assert aside == len(disk.lines("critical")) > len(begins)


def test_a_later_versions_file_is_whole_where_it_was_set_aside(disk: Disk) -> None:
    disk.fill("old")
    later(disk.path)
    disk.fill("new")
    (aside,) = disk.aside()
    connection = sqlite3.connect(aside)
    assert connection.execute("SELECT request FROM request").fetchall() == [("old",)]
    connection.close()


def test_a_file_that_breaks_while_it_is_open_is_set_aside_then(disk: Disk) -> None:
    disk.fill(*(f"old-{count}" for count in range(500)))
    file = disk.file()
    assert len(names(file)) == 500
    other = sqlite3.connect(disk.path)  # its pages are read anew once another has written
    other.execute("INSERT INTO request_tally VALUES (1, 1)")
    other.commit()
    scrambled(disk.path)
    file.write([inserted(row("new"))])
    assert names(file) == ["new"]
    assert len(disk.lines("critical")) == 1
    other.close()
    file.close()


def test_a_write_ahead_log_that_is_cut_under_an_open_file_costs_its_rows_and_no_more(
    disk: Disk,
) -> None:
    first, second = disk.file(), disk.file()
    first.write([inserted(row(f"old-{count}")) for count in range(500)])
    assert len(names(second)) == 500
    data = disk.path.read_bytes()
    disk.path.write_bytes(data[:4096] + random.Random(1).randbytes(max(0, len(data) - 4096)))
    os.truncate(f"{disk.path}-wal", 0)
    for file in (first, second):
        for _ in range(3):
            with suppress(RecordsUnavailable):
                file.write([inserted(row("new"))])
        assert "new" in names(file)
        file.close()
    assert "new" in disk.names()


def test_another_process_that_had_the_old_file_open_goes_on_with_the_fresh_one(disk: Disk) -> None:
    first, second = disk.file(), disk.file()
    first.write([inserted(row("old"))])
    assert names(second) == ["old"]
    later_elsewhere = disk.path.with_name("elsewhere")
    os.rename(disk.path, later_elsewhere)
    first.write([inserted(row("a"))])
    second.write([inserted(row("b"))])
    assert names(first) == names(second) == ["a", "b"]
    first.close()
    second.close()
    assert disk.names() == ["a", "b"]


def test_broken_files_are_not_heaped_up_without_end(disk: Disk) -> None:
    for _ in range(ASIDE_AT_MOST + 3):
        overwritten(disk.path)
        disk.fill("a")
    assert len(disk.aside()) == ASIDE_AT_MOST


# --- a disk that will not -------------------------------------------------------------------------


def test_a_full_disk_is_said_and_goes_on_once_there_is_room(disk: Disk) -> None:
    file = disk.file(max_pages=40)
    written = 0
    with pytest.raises(RecordsUnavailable, match="full"):
        while True:
            file.write([inserted(row(f"r{written}", client="x" * 200))])
            written += 1
    assert written > 20 and len(names(file)) == written  # what was committed is there, and is read
    file.write([Statement("DELETE FROM request WHERE id < 10")])
    file.write([inserted(row("after"))])
    assert names(file)[-1] == "after"
    assert not disk.aside()
    file.close()


@needs_mounts
def test_a_disk_that_is_read_only_is_waited_for_and_its_file_is_not_set_aside(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path) as folder:
        disk = Disk(folder)
        disk.fill("before")
        remounted(folder, "ro")
        file = disk.file()
        with pytest.raises(RecordsUnavailable):
            file.write([inserted(row("lost"))])
        remounted(folder, "rw")
        file.write([inserted(row("after"))])
        assert names(file) == ["before", "after"]
        assert not disk.aside() and not disk.lines("critical")
        file.close()


@needs_mounts
def test_a_disk_that_is_really_full_loses_nothing_that_was_written(tmp_path: Path) -> None:
    with small_disk(tmp_path) as folder:
        disk = Disk(folder)
        file = disk.file()
        file.write([inserted(row("before"))])
        ballast = filled(folder)
        with pytest.raises(RecordsUnavailable):
            for count in range(200):
                file.write([inserted(row(f"r{count}", client="x" * 200))])
        committed = names(file)
        assert committed[0] == "before"
        ballast.unlink()
        file.write([inserted(row("after"))])
        file.close()
        assert disk.names() == [*committed, "after"]
        assert not disk.aside()


def tried_as_nobody(path: Path) -> str:
    """What is said where a user who owns nothing here writes a row."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()  # it has all that it needs: this user may not even read python
    if not child:
        with suppress(BaseException), os.fdopen(writes, "w") as said:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            file = RecordsFile(path, Log(node="n1", process="p", stream=said))
            try:
                file.write([inserted(row("a"))])
                print("written", file=said)
            except RecordsUnavailable as error:
                print("unavailable:", error, file=said)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as said:
        found = said.read()
    os.waitpid(child, 0)
    return found


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder of everybody's, in a place that everybody reaches."""
    with tempfile.TemporaryDirectory(prefix="shoal-records-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
        folder.chmod(0o777)


def test_a_folder_that_may_not_be_written_makes_the_records_unavailable(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    said = tried_as_nobody(open_folder / "records.sqlite")
    assert said.startswith("unavailable: ") and "ermission" in said
    assert not list(open_folder.iterdir())


@pytest.mark.parametrize("mode", [0o444, 0o000])
def test_a_file_that_may_not_be_written_is_set_aside(open_folder: Path, mode: int) -> None:
    disk = Disk(open_folder)
    disk.fill("old")
    (open_folder / "records.sqlite.lock").unlink()
    disk.path.chmod(mode)
    said = tried_as_nobody(disk.path).splitlines()
    assert said[-1] == "written" and "not writable" in said[0]
    assert [one.name.split("-")[0] for one in disk.aside()] == ["records.sqlite.unwritable"]


def test_a_folder_that_is_not_there_makes_the_records_unavailable_until_it_is(disk: Disk) -> None:
    disk.path = disk.path.parent / "later" / "records.sqlite"
    file = disk.file()
    with pytest.raises(RecordsUnavailable):
        file.write([inserted(row("a"))])
    disk.path.parent.mkdir()
    file.write([inserted(row("b"))])
    assert names(file) == ["b"]
    file.close()


# --- processes that are killed --------------------------------------------------------------------


class Writer:
    """A process that writes until it is killed; `said` are the rows that it knows are committed."""

    def __init__(self, path: Path, name: str, durable: str = "") -> None:
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.records_writer", str(path), name, durable],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # the last one may be torn: that it is committed was not said
                self.said.append(line.strip())

    def kill(self) -> list[str]:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        self._thread.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.said


@pytest.mark.slow
def test_whoever_is_killed_at_any_point_what_was_acknowledged_is_there(disk: Disk) -> None:
    chance = random.Random(7)
    acknowledged: list[str] = []
    for turn in range(20 if PROVING else 4):
        writers = [
            Writer(disk.path, f"t{turn}w{number}", "durable" if number else "")
            for number in range(2)
        ]
        wanted = chance.randrange(0, 120)  # 0: both may still be making the file
        eventually(
            lambda: sum(len(one.said) for one in writers) >= wanted,  # noqa: B023 - called here
            60,
            "rows are written",
        )
        for one in writers:
            acknowledged += one.kill()
    file = disk.file()
    found = names(file)
    assert file.read([Statement("PRAGMA integrity_check")]) == [[("ok",)]]
    assert file.read([Statement("SELECT rows FROM request_tally")]) == [[(len(found),)]]
    file.close()
    assert len(acknowledged) > 100
    assert set(acknowledged) <= set(found) and len(set(found)) == len(found)
    assert not disk.aside() and not disk.lines("critical")


def test_what_another_process_has_in_its_write_ahead_log_is_set_aside_with_the_file(
    disk: Disk,
) -> None:
    other = sqlite3.connect(disk.path)
    disk.fill("old")
    other.execute("UPDATE request SET model = 'kept'")
    other.execute(f"PRAGMA user_version = {VERSION + 1}")
    other.commit()  # both stand in the log alone, as long as this one has the file open
    disk.fill("new")
    other.close()
    assert disk.names() == ["new"]
    (aside,) = disk.aside()
    assert aside.name.startswith("records.sqlite.newer-")
    connection = sqlite3.connect(aside)
    assert connection.execute("SELECT request, model FROM request").fetchall() == [("old", "kept")]
    connection.close()


@pytest.mark.slow
def test_processes_that_find_a_broken_file_at_once_set_it_aside_once(disk: Disk) -> None:
    disk.fill("old")
    overwritten(disk.path)
    writers = [Writer(disk.path, f"w{number}") for number in range(3)]
    eventually(lambda: all(len(one.said) >= 5 for one in writers), 60, "all of them write")
    acknowledged = [name for one in writers for name in one.kill()]
    file = disk.file()
    assert set(acknowledged) <= set(names(file))
    assert len(disk.aside()) == 1
    file.close()
