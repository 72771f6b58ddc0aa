"""`shoal selftest` as a command: chosen checks, the file, exit codes, and Ctrl-C."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from gateway.cli.selftest.child import measured_by
from gateway.cli.selftest.machine_lines import PACKAGES
from gateway.cli.selftest.selftest import NAMES, Checks
from gateway.cli.selftest.site import SelftestSite
from tests.harness.commands import CODE, ROOT, command, forked
from tests.harness.nodes import variables
from tests.harness.typed_lines import examples

WAIT_S = 60.0
GONE_S = 5.0
"""How long killed processes may be seen; a measurement that goes on takes longer."""


def env_of(home: Path) -> dict[str, str]:
    own = {"SHOAL_HOME": str(home / "own"), "TMPDIR": str(home), "SHOAL_HTTP_PORT": "1"}
    return variables(own) | {"NO_COLOR": "1", "PYTHONPATH": str(ROOT)}


def test_the_names_in_the_help_are_those_of_the_checks() -> None:
    assert tuple(Checks(SelftestSite.__new__(SelftestSite)).chosen()) == NAMES


def test_an_unknown_check_is_refused_with_the_names(tmp_path: Path) -> None:
    done = forked("selftest", "--only", "speed", env=env_of(tmp_path), timeout=WAIT_S)
    assert done.returncode == 2
    assert "there is no check 'speed'" in done.stderr and "sampling" in done.stderr


def test_a_chosen_check_writes_a_document_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    words = ("selftest", "--only", "service,blas", "--only", "sleep", "--save", str(file), "--json")
    done = command(*words, env=env_of(tmp_path), timeout=WAIT_S)
    found = json.loads(file.read_text())
    assert json.loads(done.stdout) == found
    assert done.returncode == int(not found["passed"]), done.stderr
    assert {line["check"] for line in found["lines"]} == {"service", "blas", "sleep"}
    assert all(line["advice"] for line in found["lines"] if line["outcome"] == "failed")
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "and no home of this user"
    text = file.read_text()
    for secret in (socket.gethostname(), getpass.getuser(), str(Path.home()), str(tmp_path)):
        assert f'"{secret}"' not in text and f" {secret} " not in text
    assert "/" not in text.replace("</", "").replace("/s", "")


def test_a_process_that_a_measurement_leaves_running_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, left = tmp_path / "python", tmp_path / "left"
    python.write_text(f"#!/bin/sh\nsleep 60 >&- 2>&- &\necho $! > {left}\necho '{{}}'\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert measured_by("draws", {}, dict(os.environ), WAIT_S) == {}
    with contextlib.suppress(psutil.NoSuchProcess):
        ended = psutil.Process(int(left.read_text()))
        with contextlib.suppress(psutil.TimeoutExpired):
            ended.wait(5.0)
        assert ended.status() == psutil.STATUS_ZOMBIE


def test_the_version_of_shoal_is_known() -> None:
    assert version(PACKAGES[0])


@pytest.mark.slow
def test_an_interrupt_ends_the_measurement_and_deletes_the_home(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-c", CODE, "selftest", "--only", "kv"]
    child = subprocess.Popen(words, env=env_of(tmp_path), stdout=-1, stderr=-1, text=True)
    try:
        measuring = wait_for_measurement(child.pid)
        os.kill(child.pid, signal.SIGINT)
        _, errors = child.communicate(timeout=WAIT_S)
    finally:
        child.kill()
    assert child.returncode == 130 and "interrupted" in errors
    _, alive = psutil.wait_procs(measuring, timeout=GONE_S)
    assert not alive
    assert list(tmp_path.iterdir()) == []


def wait_for_measurement(pid: int) -> list[psutil.Process]:
    """Return the processes below a self-test, once a measurement runs."""
    ends_at = time.monotonic() + WAIT_S
    while time.monotonic() < ends_at:
        below = psutil.Process(pid).children(recursive=True)
        if any("runner" in " ".join(process.cmdline()) for process in below):
            return below
        time.sleep(0.05)
    raise AssertionError("no measurement began")


def test_the_printed_examples_run(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    env = env_of(tmp_path) | {"TMPDIR": str(tmp_path / "tmp")}
    for line in examples("selftest"):
        done = forked(*shlex.split(line)[1:], env=env, timeout=WAIT_S, cwd=tmp_path)
        assert done.returncode in (0, 1) and " not applicable in " in done.stdout, done.stderr
    assert json.loads((tmp_path / "result.json").read_text())["lines"]
