"""How busy runners share the cores: processes of their own, as runners are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.mlx.model.cores import LOOK_S, OwnThreads, SharedThreads, share, shared_threads

ROOT = Path(__file__).resolve().parents[4]
PLAYER = f"""
import sys, time
from pathlib import Path
from runner.mlx.model.cores import SharedThreads
told = [int(sys.argv[2])]
threads = SharedThreads(
    Path(sys.argv[1]), most=int(sys.argv[2]), cores=int(sys.argv[3]), set_threads=told.append
)
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "work":
        time.sleep({LOOK_S} * 1.2)
        threads.work()
    else:
        threads.rest()
    print(told[-1], flush=True)
"""


class Player:
    """A process that works and rests when told, and says how many threads it has."""

    def __init__(self, file: Path, most: int, cores: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PLAYER, str(file), str(most), str(cores)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._line() == "ready"

    def work(self) -> int:
        return self._told("work")

    def rest(self) -> int:
        return self._told("rest")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _told(self, what: str) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


Join = Callable[[], Player]


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    players: list[Player] = []

    def joined() -> Player:
        players.append(Player(tmp_path / "busy-runners", most=4, cores=4))
        return players[-1]

    yield joined
    for player in players:
        player.close()


@given(st.integers(1, 64), st.integers(1, 128), st.integers(1, 200))
def test_busy_runners_together_never_have_more_threads_than_cores(
    most: int, cores: int, busy: int
) -> None:
    each = share(most, cores, busy)
    assert 1 <= each <= most
    assert each * busy <= max(cores, busy)
    assert each == most or each == 1 or (each + 1) * busy > cores


def test_a_runner_has_all_threads_while_the_others_rest(join: Join) -> None:
    first, second = join(), join()
    assert first.work() == 4
    assert second.work() == 2 and first.work() == 2
    third = join()
    assert third.work() == 1 and first.work() == 1
    second.rest()
    third.rest()
    assert first.work() == 4


def test_a_killed_runner_leaves_its_share_to_the_others(join: Join) -> None:
    first, second = join(), join()
    assert second.work() == 4 and first.work() == 2
    second.close()
    assert first.work() == 4
    assert join().work() == 2, "the line of the killed one was not taken over"


def test_a_step_does_not_look_at_the_others_each_time(tmp_path: Path) -> None:
    told: list[int] = []
    file = tmp_path / "busy-runners"
    threads = SharedThreads(file, most=2, cores=2, set_threads=told.append)
    threads.work()
    file.write_bytes(b"\1" * 8 * 512)
    threads.work()
    assert not told


def test_a_library_on_one_thread_or_none_keeps_its_own(tmp_path: Path) -> None:
    assert isinstance(shared_threads(tmp_path / "no" / "folder", 4), OwnThreads)
