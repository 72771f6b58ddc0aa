"""The journal on a real disk: crashes, bounds, a full disk."""

from __future__ import annotations

import io
import random
import resource
import shutil
import signal
import tempfile
from pathlib import Path
from zlib import crc32

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus.process.logs import Log
from bus.replica.lost_range import LostRange, range_of
from bus.replica.state import ClusterState, apply
from bus.wire.codec import pack, unpack
from bus.wire.errors import WrittenLater
from bus.wire.ids import NodeId
from bus.wire.messages.events import Event, NodeJoined
from bus.wire.messages.wire import PROTOCOL_MAX
from master.log.archives import Archives
from master.log.files import Files
from master.log.journal import Journal
from master.log.records import HEADER, read_records, record_of_event
from tests.sim.disk import Disk


def quiet() -> tuple[Log, io.StringIO]:
    stream = io.StringIO()
    return Log(node="n", process="t", stream=stream), stream


def joined(index: int) -> Event:
    body = NodeJoined(node=NodeId(f"n{index}"), name="x")
    return Event(term=1, index=index, at_s=0.0, body=body)


def fill(journal: Journal, state: ClusterState, count: int) -> ClusterState:
    for _ in range(count):
        event = joined(state.index + 1)
        state = apply(state, event)
        journal.append(event, state_after=state)
    return state


def replayed(folder: Path) -> ClusterState:
    journal = Journal(folder, quiet()[0], low_disk_bytes=0)
    state, events = journal.open()
    journal.close()
    for event in events:
        state = apply(state, event)
    return state


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    state = fill(journal, journal.open()[0], 10)
    journal.close()
    assert replayed(tmp_path) == state


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 3000))
def test_a_torn_tail_costs_only_what_was_torn(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.log"
    path.unlink(missing_ok=True)
    journal = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    states = [journal.open()[0]]
    for _ in range(10):
        states.append(fill(journal, states[-1], 1))
    journal.close()
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    again = replayed(tmp_path)
    assert again in states
    assert replayed(tmp_path) == again


def written(folder: Path, count: int = 10) -> tuple[bytes, list[ClusterState]]:
    """A journal of so many events, and the states that it went through."""
    journal = Journal(folder, quiet()[0], low_disk_bytes=0)
    states = [journal.open()[0]]
    for _ in range(count):
        states.append(fill(journal, states[-1], 1))
    journal.close()
    return (folder / "events.log").read_bytes(), states


def state_of(data: bytes) -> ClusterState:
    found = read_records(data)
    state = found.state
    for event in found.events:
        state = apply(state, event)
    return state


def test_a_flipped_bit_anywhere_is_damage_and_the_log_ends_before_it(tmp_path: Path) -> None:
    whole, states = written(tmp_path)
    ends = [read_records(whole[:n]).good_bytes for n in range(len(whole) + 1)]
    for at in range(len(whole)):
        for bit in (at % 8, (at + 3) % 8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            found = read_records(bytes(data))
            assert found.good_bytes == ends[at], at
            assert state_of(bytes(data)) in states
            assert found.damage is not None and found.damage.first == found.index + 1
            last_is_good = ends[at] < ends[-2]
            assert found.damage.last == (10 if last_is_good else None), at


def test_a_cut_anywhere_is_a_torn_tail(tmp_path: Path) -> None:
    whole, states = written(tmp_path)
    for size in range(len(whole)):
        for data in (whole[:size], whole[:size] + bytes(100)):
            found = read_records(data)
            if data[found.good_bytes :].rstrip(b"\0") and data != whole[:size]:
                continue  # zeros within a record: nothing tells that from damage
            assert found.damage is None, size
            assert state_of(data) in states


@settings(max_examples=200)
@given(st.data())
def test_a_page_of_anything_else_is_damage(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole, states = written(Path(folder), 4)
    at = data.draw(st.integers(0, len(whole) - 64))
    page = data.draw(st.binary(min_size=64, max_size=64))
    spoilt = whole[:at] + page + whole[at + 64 :]
    found = read_records(spoilt)
    assert state_of(spoilt) in states
    assert (found.damage is not None) == (spoilt != whole) or not any(spoilt[found.good_bytes :])


def test_a_damaged_file_is_kept_aside_and_the_log_counts_as_lost_until_it_is_whole(
    tmp_path: Path,
) -> None:
    whole, states = written(tmp_path)
    spoilt = bytearray(whole)
    spoilt[len(whole) // 2] ^= 1
    (tmp_path / "events.log").write_bytes(spoilt)
    log, said = quiet()
    journal = Journal(tmp_path, log, low_disk_bytes=0)
    journal.open()
    assert journal.lost and said.getvalue().count('"critical"') == 1
    (kept,) = tmp_path.glob("*.damaged")
    assert kept.read_bytes() == spoilt
    state = replayed(tmp_path)
    assert range_of(kept.name) == LostRange(state.index + 1, 10)
    assert state in states and 0 < state.index < 10
    state = fill(journal, state, 3)
    journal.close()
    again = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    again.open()
    assert again.lost, "restarted before it was whole again"
    again.mended(state)
    again.close()
    last = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    assert last.open() == (state, []) and not last.lost
    last.close()
    assert list(tmp_path.glob("*.damaged")) == [kept]


def test_a_damaged_file_that_cannot_be_kept_aside_is_left_as_it_is(tmp_path: Path) -> None:
    class NoLinks(Files):
        def link(self, path: Path, to: Path) -> None:
            raise OSError("no links here")

    whole, _ = written(tmp_path)
    spoilt = whole[:-1] + bytes((whole[-1] ^ 1,))
    (tmp_path / "events.log").write_bytes(spoilt)
    journal = Journal(tmp_path, quiet()[0], low_disk_bytes=0, files=NoLinks())
    fill(journal, journal.open()[0], 3)
    journal.close()
    assert journal.degraded and journal.lost
    assert (tmp_path / "events.log").read_bytes() == spoilt


def test_what_was_synced_survives_a_power_cut_and_what_was_not_may_be_gone() -> None:
    disk, folder = Disk(), Path("/journal")
    journal = Journal(folder, quiet()[0], low_disk_bytes=1, files=disk)
    state = fill(journal, journal.open()[0], 5)
    journal.sync()
    assert disk.unsynced_bytes() == 0
    fill(journal, state, 5)
    assert disk.unsynced_bytes() > 0
    disk.lose_power(random.Random(1))
    kept, events = Journal(folder, quiet()[0], low_disk_bytes=1, files=disk).open()
    assert kept.index + len(events) >= state.index


def test_a_full_file_gives_way_to_one_that_begins_with_a_snapshot(tmp_path: Path) -> None:
    journal = Journal(tmp_path, quiet()[0], max_records=20, low_disk_bytes=0)
    state = journal.open()[0]
    sizes = list[int]()
    for _ in range(50):
        state = fill(journal, state, 1)
        sizes.append((tmp_path / "events.log").stat().st_size)
    journal.close()
    assert sizes[21] < sizes[19] + 4096
    again = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    kept, events = again.open()
    again.close()
    assert len(events) <= 20
    assert kept.index + len(events) == 50
    assert replayed(tmp_path) == state


def test_what_was_rotated_is_archived_and_only_the_latest_few_are_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path, quiet()[0], max_records=20, low_disk_bytes=0)
    state = journal.open()[0]
    fill(journal, state, 21 * 8)
    journal.close()
    kept = sorted(path.name for path in (tmp_path / "archives").iterdir())
    assert kept == [f"events-000001-{21 * n:012d}.log.zst" for n in range(4, 9)]
    packed = (tmp_path / "archives" / kept[-1]).read_bytes()
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "events.log").write_bytes(
        zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    )
    assert replayed(tmp_path / "again").index == 21 * 8


def test_archives_stay_under_their_bound_in_bytes(tmp_path: Path) -> None:
    archives = Archives(tmp_path, quiet()[0], kept_bytes=25_000)
    for number in range(4):
        source = tmp_path / "source"
        source.write_bytes(random.Random(number).randbytes(10_000))
        archives.take(source, f"events-{number}")
        source.unlink()
    archives.finish()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["events-2.log.zst", "events-3.log.zst"]


def test_a_segment_that_a_crash_left_is_compressed_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / "events-000001-000000000007.log").write_bytes(b"left")
    journal = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    journal.open()
    journal.close()
    assert [p.name for p in (tmp_path / "archives").iterdir()] == [
        "events-000001-000000000007.log.zst"
    ]


def test_a_disk_that_fills_up_costs_no_whole_record_and_no_crash(tmp_path: Path) -> None:
    log, said = quiet()
    journal = Journal(tmp_path, log, low_disk_bytes=0)
    state = fill(journal, journal.open()[0], 10)
    size = (tmp_path / "events.log").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        fill(journal, state, 5)
        journal.compact(state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert journal.degraded and said.getvalue().count('"critical"') == 1
    fill(journal, state, 5)
    journal.close()
    assert replayed(tmp_path) == state


def test_with_the_disk_nearly_full_it_only_counts_and_says_so_once(tmp_path: Path) -> None:
    log, said = quiet()
    journal = Journal(tmp_path, log, low_disk_bytes=1 << 60)
    state = journal.open()[0]
    fill(journal, state, 3000)
    journal.close()
    assert journal.degraded
    assert journal.appended == 3000
    assert said.getvalue().count('"critical"') == 1


def test_a_file_of_garbage_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "events.log").write_bytes(b"\xff" * 500)
    journal = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    state, events = journal.open()
    assert (state, events) == (ClusterState(), []) and journal.lost
    state = fill(journal, state, 3)
    journal.close()
    assert replayed(tmp_path) == state


def rewritten(path: Path, **changes: object) -> bytes:
    """The file of a version that knows more: its records are whole, and say what we do not know."""
    data, made = path.read_bytes(), b""
    while data:
        length, _ = HEADER.unpack_from(data)
        record = unpack(data[HEADER.size : HEADER.size + length])
        data = data[HEADER.size + length :]
        if "state" in record:
            record |= {key: value for key, value in changes.items() if key in record}
        elif record["event"]["index"] == 2:
            record["event"]["body"] = {"kind": "of_tomorrow", "field": 1}
        body = pack(record)
        made += HEADER.pack(len(body), crc32(body)) + body
    path.write_bytes(made)
    return made


@pytest.mark.parametrize("protocol", [PROTOCOL_MAX + 1, None], ids=["named", "not named"])
def test_a_journal_of_a_later_version_is_no_damage_and_nothing_touches_it(
    tmp_path: Path, protocol: int | None
) -> None:
    journal = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    fill(journal, journal.open()[0], 4)
    journal.close()
    data = rewritten(tmp_path / "events.log", protocol=protocol)
    names = sorted(tmp_path.iterdir())
    log, said = quiet()
    with pytest.raises(WrittenLater, match="written by a newer version") as told:
        Journal(tmp_path, log, low_disk_bytes=0).open()
    assert (f"protocol {protocol}" in str(told.value)) == (protocol is not None)
    assert (tmp_path / "events.log").read_bytes() == data
    assert sorted(tmp_path.iterdir()) == names and said.getvalue() == ""


def test_what_this_version_wrote_and_does_not_understand_is_damage(tmp_path: Path) -> None:
    journal = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    fill(journal, journal.open()[0], 4)
    journal.close()
    rewritten(tmp_path / "events.log")
    journal = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    _, events = journal.open()
    journal.close()
    assert journal.lost and [event.index for event in events] == [1]


def test_a_file_of_an_earlier_version_is_begun_anew_so_that_it_names_ours(tmp_path: Path) -> None:
    journal = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    state = fill(journal, journal.open()[0], 2)
    journal.close()
    path = tmp_path / "events.log"
    found = read_records(path.read_bytes())
    older = [record_of_event(event) for event in found.events]
    path.write_bytes(b"".join(older))
    journal = Journal(tmp_path, quiet()[0], low_disk_bytes=0)
    assert len(journal.open()[1]) == 2 and not journal.lost
    state = fill(journal, state, 1)
    journal.close()
    assert read_records(path.read_bytes()).protocol == PROTOCOL_MAX
    assert replayed(tmp_path) == state
    assert len(list((tmp_path / "archives").iterdir())) == 1


def test_a_journal_that_only_counts_says_when_there_is_room_and_how_nothing_is_lost(
    tmp_path: Path,
) -> None:
    disk, (log, said) = Disk(), quiet()
    journal = Journal(tmp_path, log, low_disk_bytes=1, files=disk)  # pyright: ignore[reportArgumentType]
    state = fill(journal, journal.open()[0], 2)
    disk.full = True
    state = fill(journal, state, 3)
    assert journal.degraded and said.getvalue().count("do not restart `master`") == 1
    journal.look(state)
    assert "there is disk space for the journal again" not in said.getvalue()
    disk.full = False
    journal.look(state)
    journal.look(state)
    assert (
        said.getvalue().count("there is disk space for the journal again") == 1 and journal.degraded
    )
    journal.keep_whole(state)
    journal.close()
    again = Journal(tmp_path, log, low_disk_bytes=1, files=disk)  # pyright: ignore[reportArgumentType]
    found, events = again.open()
    assert (found, events) == (state, []), "what was acknowledged meanwhile is there"


def test_a_journal_whose_file_was_removed_is_begun_anew_and_loses_nothing(tmp_path: Path) -> None:
    (log, said), folder = quiet(), tmp_path / "journal"
    journal = Journal(folder, log, low_disk_bytes=0)
    state = fill(journal, journal.open()[0], 3)
    journal.look(state)
    assert not said.getvalue()
    shutil.rmtree(folder)
    journal.look(state)
    journal.look(state)
    assert said.getvalue().count("the journal file was removed") == 1 and not journal.degraded
    state = fill(journal, state, 1)
    journal.close()
    assert replayed(folder) == state
