"""The outer shell of a service, in real processes."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.process.logs import Log
from bus.service import EXIT_ROLE_TAKEN, role_lock, sweep_role
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import AlreadyRunning
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.control import AskStacks, StackSample
from tests.harness.nodes import eventually

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from bus.process.endpoints import Endpoints
from bus.process.logs import Log
from bus.wire.ids import NodeId
from bus.service import run_service

class Idle:
    def close(self):
        sys.stderr.write("closed in good order\\n")

def build(shell):
    sys.stderr.write("built\\n")
    return Idle()

sys.exit(run_service("idle", node=NodeId("n"), endpoints=Endpoints(sys.argv[1]),
                     log_level="info", build=build))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sh") as made:
        yield Path(made)


def start(folder: Path, *, supervised: bool) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if supervised:
        env["SUPERVISOR_ENABLED"] = "1"
    life = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=env,
    )  # fmt: skip
    assert life.stderr is not None
    assert "built" in life.stderr.readline()
    return life


def ended(life: subprocess.Popen[str]) -> tuple[int, str]:
    out = life.communicate(timeout=20)[1]
    return life.returncode, out


def test_a_service_stops_in_good_order_on_sigterm(folder: Path) -> None:
    life = start(folder, supervised=False)
    life.send_signal(signal.SIGTERM)
    code, said = ended(life)
    assert code == 0
    assert "closed in good order" in said
    assert not list(folder.iterdir())


def test_a_service_ends_when_its_supervisors_pipe_does(folder: Path) -> None:
    life = start(folder, supervised=True)
    assert life.stdin is not None
    life.stdin.close()
    life.stdin = None
    code, said = ended(life)
    assert code == 0
    assert "closed in good order" in said


def test_an_unsupervised_service_does_not_mind_the_end_of_its_input(folder: Path) -> None:
    life = start(folder, supervised=False)
    assert life.stdin is not None
    life.stdin.close()
    life.stdin = None
    with pytest.raises(subprocess.TimeoutExpired):
        life.wait(1.0)
    life.send_signal(signal.SIGTERM)
    assert ended(life)[0] == 0


def test_a_role_is_held_by_one_process(folder: Path) -> None:
    life = start(folder, supervised=False)
    endpoints = Endpoints(str(folder))
    with pytest.raises(AlreadyRunning, match=str(life.pid)), role_lock(endpoints, "idle"):
        pass
    second = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(folder)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=30,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert second.returncode == EXIT_ROLE_TAKEN
    assert "already running" in second.stderr
    life.send_signal(signal.SIGTERM)
    assert ended(life)[0] == 0


def test_a_role_left_by_a_killed_process_can_be_taken(folder: Path) -> None:
    life = start(folder, supervised=False)
    life.kill()
    ended(life)
    with role_lock(Endpoints(str(folder)), "idle"):
        pass


def test_a_role_whose_file_was_removed_is_held_again_unless_another_has_it(folder: Path) -> None:
    endpoints, said = Endpoints(str(folder / "r")), io.StringIO()
    log = Log(node="n", process="idle", stream=said)
    with role_lock(endpoints, "idle") as role:
        role.look(log)
        assert not said.getvalue()
        shutil.rmtree(folder / "r")
        role.look(log)
        assert said.getvalue().count("was removed; making a new one") == 1
        with pytest.raises(AlreadyRunning, match=str(os.getpid())), role_lock(endpoints, "idle"):
            pass
        role.path.unlink()
        with role_lock(endpoints, "idle"):
            for _ in range(2):
                role.look(log)
        assert said.getvalue().count("cannot be made") == 1
        role.look(log)
    assert not role.path.exists()


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_has_is_not(
    folder: Path,
) -> None:
    endpoints, life = Endpoints(str(folder)), start(folder, supervised=False)
    (folder / "idler.stacks").touch()
    eventually((folder / "idle.stacks").exists, 30, "the process can be asked for its stacks")
    mine = sorted(path.name for path in folder.glob("idle.*"))
    assert {"idle.role", "idle.stacks"} <= set(mine)
    assert sweep_role(endpoints, "idle") == []
    life.kill()
    ended(life)
    assert sweep_role(endpoints, "idle") == mine
    assert sorted(path.name for path in folder.iterdir()) == ["idler.stacks"]
    assert sweep_role(endpoints, "idle") == []


def test_a_service_answers_for_its_own_stacks(folder: Path) -> None:
    life = start(folder, supervised=False)
    link = Link("dealer", identity="t")
    link.connect(Endpoints(str(folder)).stacks("idle"))
    link.send(encode(Envelope(NodeId("n"), "t", Boot("b"), 1, AskStacks())))
    assert link.socket.poll(10_000)
    frames = link.receive()
    link.close()
    assert frames is not None
    sample = decode(frames[-1]).message
    assert isinstance(sample, StackSample)
    names = [frame["name"] for thread in sample.threads for frame in thread["frames"]]
    assert "run_service" in names
    assert all("locals" not in frame for t in sample.threads for frame in t["frames"])
    life.send_signal(signal.SIGTERM)
    assert ended(life)[0] == 0


def test_a_sweeper_of_old_files_finds_the_folder_of_locks_locked(folder: Path) -> None:
    held = os.open(folder, os.O_RDONLY)
    try:
        endpoints = Endpoints(str(folder))
        with (
            role_lock(endpoints, "idle"),
            role_lock(endpoints, "other"),
            pytest.raises(BlockingIOError),
        ):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(held)
