from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from bus.process.supervisor import ProcessRefused, SupervisedProcess, Supervisor
from bus.wire.errors import Unavailable

ROOT = Path(__file__).resolve().parents[3]
CONF = """
[unix_http_server]
file={folder}/s.sock
[supervisord]
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
directory={folder}
childlogdir={folder}
user={user}
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[program:steady]
command={python} -P -c "import time; print('hello from steady', flush=True); time.sleep(600)"
autostart=true
autorestart=true
startsecs=0
redirect_stderr=true
[program:runner]
command={python} -P -c "import sys; sys.stdin.readline(); sys.exit(7)"
process_name=%(process_num)02d
numprocs=2
autostart=false
autorestart=false
startsecs=0
stopwaitsecs=1
[program:broken]
command=/does/not/exist
autostart=false
"""


STOCK = "from supervisor import supervisord"
OURS = f"""{STOCK}
from bus.process.zygote.forking import ForkingOptions
supervisord.ServerOptions = ForkingOptions"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with running(tmp_path, STOCK) as client:
        yield client


@contextlib.contextmanager
def running(tmp_path: Path, made_by: str) -> Generator[Supervisor]:
    """supervisord, as what these lines import has it."""
    import pwd

    conf = tmp_path / "s.conf"
    user = pwd.getpwuid(os.getuid()).pw_name
    conf.write_text(CONF.format(folder=tmp_path, python=sys.executable, user=user))
    words = ["-n", "-c", str(conf)]
    command = [sys.executable, "-c", f"{made_by}\nsupervisord.main({words})"]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    client = Supervisor(str(tmp_path / "s.sock"))
    try:
        eventually(client.is_up)
        yield client
    finally:
        child.terminate()
        child.wait(20)


def eventually(check: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, "not within the deadline"
        time.sleep(0.02)


def named(supervisor: Supervisor, name: str) -> SupervisedProcess:
    return next(p for p in supervisor.list_processes() if p.name == name)


def test_processes_are_named_as_people_see_them(supervisor: Supervisor) -> None:
    names = {process.name for process in supervisor.list_processes()}
    assert names == {"steady", "runner:00", "runner:01", "broken"}
    slot = named(supervisor, "runner:00")
    assert (slot.status, slot.pid, slot.exit_code, slot.alive) == ("stopped", 0, None, False)


def test_a_slot_starts_once_and_its_exit_code_is_told(supervisor: Supervisor) -> None:
    assert supervisor.start("runner:01") is True
    assert supervisor.start("runner:01") is False
    assert named(supervisor, "runner:01").alive
    assert supervisor.signal("runner:01", "KILL") is True
    eventually(lambda: not named(supervisor, "runner:01").alive)
    assert named(supervisor, "runner:01").exit_code == -1
    assert supervisor.signal("runner:01", "KILL") is False
    assert supervisor.stop("runner:01") is False


def test_a_frozen_process_is_stopped_by_force_after_its_patience(supervisor: Supervisor) -> None:
    supervisor.start("runner:00")
    pid = named(supervisor, "runner:00").pid
    os.kill(pid, signal.SIGSTOP)
    assert supervisor.stop("runner:00") is True
    assert not named(supervisor, "runner:00").alive


def test_a_killed_service_comes_back_with_a_new_pid(supervisor: Supervisor) -> None:
    eventually(lambda: named(supervisor, "steady").status == "running")
    before = named(supervisor, "steady").pid
    supervisor.signal("steady", "KILL")
    eventually(lambda: named(supervisor, "steady").pid not in (0, before))
    eventually(lambda: "hello from steady" in supervisor.last_words("steady"))


def test_everything_stops_at_once_and_supervisord_with_it(supervisor: Supervisor) -> None:
    pids = [supervisor.pid(), named(supervisor, "steady").pid]
    supervisor.start("runner:00")
    pids.append(named(supervisor, "runner:00").pid)
    supervisor.shutdown(first=("steady", "nobody"))
    eventually(lambda: not supervisor.is_up())
    eventually(lambda: not any(map(is_alive, pids[1:])))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere supervisord runs as it comes")
def test_a_socket_whose_file_was_swept_away_is_opened_anew(tmp_path: Path) -> None:
    with running(tmp_path, OURS) as supervisor:
        pid = named(supervisor, "steady").pid
        for _ in range(2):
            swept = (tmp_path / "s.sock").stat().st_ino
            (tmp_path / "s.sock").rename(tmp_path / "swept.sock")
            eventually((tmp_path / "s.sock").exists)
            assert (tmp_path / "s.sock").stat().st_ino != swept
            eventually(supervisor.is_up)
        assert named(supervisor, "steady").pid == pid, "nothing was restarted"
        away = tmp_path.rename(tmp_path.with_name("away"))
        (away / "s.sock").unlink()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_alive(pid))  # supervisord has looked, and the folder was gone
        away.rename(tmp_path)
        eventually(supervisor.is_up)
        supervisor.shutdown(first=())
        eventually(lambda: not (tmp_path / "s.sock").exists())


def test_faults_are_refusals_with_a_reason(supervisor: Supervisor) -> None:
    with pytest.raises(ProcessRefused) as refused:
        supervisor.start("nobody")
    assert refused.value.reason == "unknown_name"
    with pytest.raises(ProcessRefused) as refused:
        supervisor.start("broken")
    assert refused.value.reason == "spawn_failed"


def test_a_supervisord_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    nobody = Supervisor(str(tmp_path / "none.sock"))
    assert nobody.is_up() is False
    with pytest.raises(Unavailable, match=r"none\.sock"):
        nobody.list_processes()
