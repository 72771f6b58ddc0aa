"""What of a home still runs: real processes, real locks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bus.process.identity import node_id
from bus.process.supervisor import Supervisor
from conf.paths import Paths, find_paths
from conf.settings import load_settings
from gateway.cli.node import processes
from gateway.cli.output.errors import CliError
from gateway.cli.output.terminal import QUIET, Output
from gateway.cli.verbs.node.down import bring_down

STUBBORN = """
import fcntl, os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1], "a+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(f"{os.getpid()}\\n")
    file.flush()
    print(child.pid, flush=True)
    signal.pause()
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = replace(find_paths(tmp_path / "home"), runtime=tmp_path / "run")
    for folder in (found.state, found.runtime):
        folder.mkdir(parents=True)
    return found


@pytest.fixture
def stubborn(paths: Paths) -> Iterator[tuple[int, int]]:
    """A process that holds the role `bus` and ignores SIGTERM; (its pid, its child's)."""
    program = [sys.executable, "-c", STUBBORN, str(paths.runtime / "bus.role")]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        yield holder.pid, child
        for pid in (holder.pid, child):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def test_the_holder_of_a_role_and_its_children_are_found(
    paths: Paths, stubborn: tuple[int, int]
) -> None:
    found = processes.leftovers(paths)
    assert [(one.role, one.pid) for one in found] == [
        ("bus", stubborn[0]),
        ("child of bus", stubborn[1]),
    ]
    assert all(processes.alive(one) for one in found)


def test_a_process_of_the_same_number_but_another_birth_is_not_ours(
    paths: Paths, stubborn: tuple[int, int]
) -> None:
    (holder, _) = processes.leftovers(paths)
    earlier = psutil.Process(holder.pid)
    earlier._ident = (holder.pid, earlier._ident[1] - 60.0)  # pyright: ignore
    assert processes.alive(holder)
    assert not processes.alive(replace(holder, process=earlier))
    processes.signal_all([replace(holder, process=earlier)], signal.SIGKILL)
    with pytest.raises(psutil.TimeoutExpired):
        holder.process.wait(0.2)


def test_a_lock_file_that_nobody_holds_is_litter_and_no_leftover(paths: Paths) -> None:
    (paths.runtime / "gateway.role").write_text(f"{os.getpid()}\n")
    assert processes.leftovers(paths) == []
    assert processes.litter(paths) == ["gateway.role"]


def test_a_stale_pid_file_names_nobody(paths: Paths) -> None:
    paths.supervisord_pid.write_text(f"{os.getpid()}\n")
    assert processes.leftovers(paths) == []


def test_an_http_process_whose_parent_was_killed_is_ours_and_no_stranger(paths: Paths) -> None:
    node = node_id(paths.state)
    paths.run.mkdir()
    title = f"gunicorn: worker [shoal gateway {node}]"
    program = ["-c", "import sys, time; print(flush=True); time.sleep(600)", title]
    with (
        subprocess.Popen(
            [sys.executable, *program], cwd=paths.run, stdout=subprocess.PIPE
        ) as orphan,
        subprocess.Popen([sys.executable, *program], cwd=paths.home) as elsewhere,
    ):
        assert orphan.stdout is not None and orphan.stdout.readline()
        found = processes.leftovers(paths)
        for one in (orphan, elsewhere):
            one.kill()
    assert [(one.role, one.pid) for one in found] == [("gateway HTTP process", orphan.pid)]


def test_a_node_whose_supervisord_does_not_answer_is_told_from_one_that_does_not_run(
    paths: Paths,
) -> None:
    nothing = processes.no_node(paths)
    assert nothing.message == f"no node runs in {paths.home}"
    program = [sys.executable, "-c", "import time; time.sleep(600)", "-c"]
    with subprocess.Popen([*program, str(paths.supervisord_conf)]) as silent:
        paths.supervisord_pid.write_text(f"{silent.pid}\n")
        silent_one = processes.no_node(paths)
        silent.kill()
    assert f"supervisord (pid {silent.pid}) does not answer" in silent_one.message
    assert silent_one.remedy is not None and "`shoal restart --home" in silent_one.remedy


def test_down_ends_what_ignores_sigterm_and_sweeps(
    paths: Paths, stubborn: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.verbs.node.down.TERM_S", 0.3)
    (paths.runtime / "gateway-metrics").mkdir()
    paths.up_file.write_text("{}")
    nobody = Supervisor(str(paths.runtime / "supervisor.sock"))
    ended = bring_down(paths, nobody, Output(verbosity=QUIET))
    assert not ended.orderly
    assert f"bus (pid {stubborn[0]})" in ended.killed
    assert not paths.runtime.exists() and not paths.up_file.exists()
    assert processes.leftovers(paths) == []


def test_down_where_nothing_runs_is_no_error(paths: Paths) -> None:
    nobody = Supervisor(str(paths.runtime / "supervisor.sock"))
    ended = bring_down(paths, nobody, Output(verbosity=QUIET))
    assert (ended.terminated, ended.killed) == ([], [])


def test_two_cannot_start_or_stop_one_home_at_once(paths: Paths) -> None:
    with (
        processes.alone(paths),
        pytest.raises(CliError, match=("is running")),
        processes.alone(paths),
    ):
        pass
    with processes.alone(paths):
        assert sorted(one.name for one in paths.state.iterdir()) == []


def test_a_taken_port_names_its_owner() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        trouble = processes.port_problem("127.0.0.1", port)
        assert trouble is not None and f"port {port} is in use" in trouble
        assert str(os.getpid()) in trouble
    assert processes.port_problem("127.0.0.1", port) is None


def test_an_address_of_another_machine_is_a_problem_in_words() -> None:
    trouble = processes.port_problem("192.0.2.1", 2)
    assert trouble is not None and trouble.startswith("cannot listen at 192.0.2.1:2")


def test_a_node_is_moved_to_ports_that_are_free(tmp_path: Path) -> None:
    found = load_settings(home=tmp_path)
    base = processes.free_base_port(found)
    assert (
        base is not None
        and processes.move_command(found) == f"`shoal up --base-port {base}` moves all ports"
    )
    there = load_settings(home=tmp_path, flags={"base_port": base})
    assert processes.unusable_ports(there) == {}
    with socket.socket() as one:
        one.bind(("127.0.0.1", base + 5))
        assert list(processes.unusable_ports(there)) == ["weights"]
        assert processes.free_base_port(found) not in (None, base)
    chosen = load_settings(home=tmp_path, flags={"http_port": 8080})
    assert f"--base-port {base} --http-port {base}" in processes.move_command(chosen)


def test_a_port_is_the_nodes_only_where_its_own_process_listens(
    tmp_path: Path, stubborn: tuple[int, int], paths: Paths
) -> None:
    found = load_settings(home=tmp_path)
    found._paths = paths  # pyright: ignore[reportPrivateUsage]
    base = processes.free_base_port(found)
    settings = load_settings(home=tmp_path, flags={"base_port": base})
    settings._paths = paths  # pyright: ignore[reportPrivateUsage]
    with socket.create_server(("127.0.0.1", settings.port_of("peers"))):
        closed = processes.closed_ports(settings)
    assert set(closed) == {"http", "control", "telemetry", "candidate", "peers", "weights"}
    assert f"pid {os.getpid()}" in closed["peers"] and "bus does not listen" in closed["peers"]
