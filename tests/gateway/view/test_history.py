"""What was measured in the last hour: points of snapshots, in a file that stays small."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.view.watch.history import HistoryFile, HistoryKeeper, point_of


def snapshot(at_s: float, counted: int = 0, waited_s: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return a snapshot of one node, of which `counted` answers took `waited_s` to their first
    token, all together."""
    histogram = {"bounds": [1.0, None], "counts": [counted, 0], "sum": waited_s}
    node = {
        "node": "n1",
        "silent_s": 0.2,
        "cpu_ratio": 0.5,
        "memory_total_bytes": 100,
        "memory_available_bytes": 40,
        **more,
    }
    return {
        "at_s": at_s,
        "generation_tokens_per_s": 7.0,
        "prompt_tokens_per_s": 3.0,
        "running": 2,
        "waiting": 1,
        "kv_bytes": 9,
        "counters": {"ttft_s": histogram, "itl_s": histogram, "http_errors": counted},
        "nodes": [node],
    }


def test_a_point_has_what_is_so_and_means_of_what_was_counted_since() -> None:
    first, second = snapshot(10.0, 2, 1.0), snapshot(20.0, 6, 3.0)
    assert point_of(first, None) == {
        "at_s": 10.0,
        "generated": 7.0,
        "prompts": 3.0,
        "running": 2,
        "waiting": 1,
        "kv": 9,
        "ttft": None,
        "itl": None,
        "errors": None,
        "nodes": {"n1": {"cpu": 0.5, "memory": 60}},
    }
    point = point_of(second, first)
    assert (point["ttft"], point["itl"], point["errors"]) == (0.5, 0.5, 4)


def test_counts_that_began_anew_and_silent_nodes_say_nothing() -> None:
    point = point_of(snapshot(20.0, 1, 0.1, silent_s=3.0), snapshot(10.0, 9, 4.0))
    assert (point["ttft"], point["errors"]) == (None, 0)
    assert point["nodes"] == {"n1": {"cpu": None, "memory": None}}
    unheard = snapshot(20.0, silent_s=None, memory_total_bytes=None, cpu_ratio=None)
    assert point_of(unheard, None)["nodes"] == {"n1": {"cpu": None, "memory": None}}


def test_the_file_keeps_the_last_points_and_stays_small(tmp_path: Path) -> None:
    path, most = tmp_path / "history", 5
    assert HistoryFile(path, most).points() == []
    for at in range(4):
        HistoryFile(path, most).append({"at_s": at})  # a gateway that is started anew each time
    file = HistoryFile(path, most)
    for at in range(4, 40):
        file.append({"at_s": at})
        assert len(path.read_text().splitlines()) <= 2 * most
        assert [one["at_s"] for one in file.points()] == [*range(max(0, at - 4), at + 1)]
    assert [one.name for one in tmp_path.iterdir()] == ["history"]


def test_lines_that_are_no_points_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'{"at_s": 2}\n[1]\n{"x": 1}\n\xff\xfe\n{"at_s": 1}\n{"at_s": 3, "gen')
    file = HistoryFile(path)
    assert [one["at_s"] for one in file.points()] == [1, 2]
    file.append({"at_s": 4})
    assert [one["at_s"] for one in file.points()] == [1, 2, 4]


def test_a_keeper_writes_off_the_loop_one_point_at_a_time(tmp_path: Path) -> None:
    asked: list[float] = []
    wrote: list[bool] = []

    class Noting(HistoryFile):
        """A file that notes in which thread it is written."""

        def append(self, point: dict[str, Any]) -> None:
            """Add a point."""
            wrote.append(threading.current_thread() is threading.main_thread())
            super().append(point)

    async def latest() -> bytes:
        """Return another snapshot each time, after a while."""
        await asyncio.sleep(0)
        asked.append(10.0 * (1 + len(asked)))
        return json.dumps(snapshot(asked[-1], len(asked), len(asked) / 4)).encode()

    async def run() -> list[dict[str, Any]]:
        """Ask for points, two at once, then one."""
        file = Noting(tmp_path / "history")
        keeper = HistoryKeeper(file, latest)
        await asyncio.gather(keeper.note(), keeper.note())
        await keeper.note()
        return file.points()

    points = asyncio.run(run())
    assert [(one["at_s"], one["ttft"]) for one in points] == [(10.0, None), (20.0, 0.25)]
    assert wrote == [False, False]


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        HistoryFile(tmp_path / "nowhere" / "history").append({"at_s": 1})


def test_points_of_a_clock_that_was_ahead_keep_out_none_that_came_behind_them(
    tmp_path: Path,
) -> None:
    file = HistoryFile(tmp_path / "history.jsonl", 3)
    for at in (9_000, 9_001, 9_002, 1, 2, 3):
        file.append({"at_s": at})
    assert [point["at_s"] for point in file.points()] == [1, 2, 3]
