"""Tests of the command line as tests call it: a fork gives what a command of its own gives."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from conf.paths import find_paths
from tests.harness import commands
from tests.harness.commands import command, forked
from tests.harness.endings import end, living
from tests.harness.forks import server as forks_of
from tests.harness.gateway_testbed import FORKED
from tests.harness.nodes import variables

WORDS = (
    ("donw",),
    ("ls", "--json"),
    ("config", "show"),
    ("config", "show", "--json"),
    ("--url", "http://127.0.0.1:9", "ps"),
)


def env_of(home: Path, **more: str) -> dict[str, str]:
    return variables({"SHOAL_HOME": str(home), **more})


def forks(env: dict[str, str]) -> bool:
    """Whether a call with this environment is a fork."""
    return commands.server().starts_like({**env, "PYTHONPATH": str(commands.TREE)})


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_fork_says_what_a_command_says(words: tuple[str, ...], tmp_path: Path) -> None:
    env = env_of(tmp_path)
    assert forks(env)
    one, other = (run(*words, env=env, timeout=60.0) for run in (command, forked))
    assert one.stdout + one.stderr, "it says something"
    assert (one.returncode, one.stdout, one.stderr) == (
        other.returncode, other.stdout, other.stderr,
    )  # fmt: skip


def test_what_a_testbed_starts_is_forked_whichever_test_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = forks_of(FORKED, commands.ROOT)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another test")
    assert server.starts_like({**os.environ, "PYTHONPATH": str(commands.ROOT)})


def test_a_fork_has_the_environment_and_the_folder_of_its_call_alone(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for home, name in ((here, "kelp"), (there, "dulse")):
        home.mkdir()
        said = forked(
            "config", "show", "--json", env=env_of(home, SHOAL_NODE_NAME=name), timeout=60.0
        )
        assert f'"{name}"' in said.stdout
    plain = forked("config", "path", "--home", ".", env=env_of(here), timeout=60.0, cwd=there)
    assert str(there) in plain.stdout, plain.stdout + plain.stderr
    assert "kelp" not in forked("config", "show", env=env_of(here), timeout=60.0).stdout


def test_a_fork_reads_what_is_said_to_it(tmp_path: Path) -> None:
    words = ("keys", "join", "-", "--home", str(tmp_path))
    env = env_of(tmp_path)
    one, other = (run(*words, env=env, timeout=60.0, say="kelp\n") for run in (command, forked))
    assert (one.returncode, one.stderr) == (other.returncode, other.stderr)
    assert one.returncode != 0 and "kelp" not in one.stderr, one.stderr


@pytest.mark.parametrize(
    "more",
    [{"PYTHONUTF8": "0"}, {"LC_ALL": "C"}, {"TYPER_USE_RICH": "0"}],
    ids=lambda more: next(iter(more)),
)
def test_what_an_interpreter_or_an_import_reads_takes_a_command_of_its_own(
    more: dict[str, str], tmp_path: Path
) -> None:
    assert not forks(env_of(tmp_path, **more))


def test_a_call_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    env = env_of(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(subprocess.TimeoutExpired):
            forked("ps", "--url", url, env=env, timeout=1.0)
    assert psutil.Process(commands.server().pid).children() == []
    assert forked("version", env=env, timeout=60.0).returncode == 0


KEEPS = """
import os, signal
if os.fork():
    signal.pause()
os.setsid()
if os.fork():
    os._exit(0)
print("here", flush=True)
signal.pause()
"""


def test_all_of_a_home_is_ended_and_nothing_else(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    life = [
        subprocess.Popen(
            ["python3", "-c", KEEPS],
            env={**os.environ, "SHOAL_HOME": str(home)},
            stdout=subprocess.PIPE,
        )
        for home in (own, other)
    ]
    for one in life:
        assert one.stdout is not None and one.stdout.readline() == b"here\n"
    assert len(living(own)) == len(living(other)) == 2, "one of them a daemon"
    end(own, find_paths(own))
    assert living(own) == [] and life[0].wait() == -signal.SIGKILL
    assert len(living(other)) == 2 and life[1].poll() is None
    end(other, find_paths(other))
    for one in life:
        one.wait()
        one.stdout.close()
