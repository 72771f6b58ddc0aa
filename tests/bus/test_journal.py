"""The journal on a real disk: crashes, bounds, a full disk."""

from __future__ import annotations

import io
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus.ids import NodeId
from bus.journal import Journal
from bus.logs import Log
from bus.messages.events import Event, NodeJoined
from bus.state import ClusterState, apply


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


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
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
    assert (state, events) == (ClusterState(), [])
    state = fill(journal, state, 3)
    journal.close()
    assert replayed(tmp_path) == state
