"""py-spy against a real child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from telemetry import diagnose

BUSY = """
import sys, threading
def count_fish():
    n = 0
    while True:
        n += 1
def wait_for_tide():
    print("up", flush=True)
    sys.stdin.read()
threading.Thread(target=count_fish, name="counter", daemon=True).start()
secret = "a private thought"
wait_for_tide()
"""


@pytest.fixture
def busy() -> Iterator[int]:
    child = subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdin is not None
    assert child.stdout.readline() == b"up\n"
    yield child.pid
    child.stdin.close()
    child.stdout.close()
    child.wait(30)


@pytest.fixture(scope="module")
def program() -> str:
    can = diagnose.probe()
    if not can.allowed or can.program is None:
        pytest.skip(f"py-spy may not be used here: {can.reason}")
    return can.program


def test_stacks_show_every_thread_and_no_locals(program: str, busy: int) -> None:
    threads = diagnose.stacks(program, [busy])
    names = {frame["name"] for thread in threads for frame in thread["frames"]}
    assert {"count_fish", "wait_for_tide"} <= names
    assert {thread["name"] for thread in threads} >= {"counter"}
    assert {thread["pid"] for thread in threads} == {busy}
    assert "private thought" not in json.dumps(threads)
    assert all("locals" not in frame for thread in threads for frame in thread["frames"])


def test_a_speedscope_profile_names_the_busy_function(program: str, busy: int) -> None:
    captured = diagnose.profile(
        program, busy, seconds=1.0, rate_hz=50, form="speedscope", children=[]
    )
    profile = json.loads(captured)
    assert "speedscope" in profile["$schema"]
    assert any(frame["name"] == "count_fish" for frame in profile["shared"]["frames"])


def test_a_flamegraph_is_an_svg(program: str, busy: int) -> None:
    captured = diagnose.profile(
        program, busy, seconds=1.0, rate_hz=20, form="flamegraph", children=[]
    )
    assert b"<svg" in captured[:400] and b"count_fish" in captured


def test_a_process_that_is_gone_is_said_to_be_gone(program: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait(30)
    with pytest.raises(diagnose.CaptureFailed, match="no longer exists"):
        diagnose.stacks(program, [gone.pid])


def test_a_missing_program_is_no_capability() -> None:
    can = diagnose.probe("/nowhere/py-spy")
    assert not can.allowed and "cannot start py-spy" in can.reason


def test_a_denial_says_how_to_allow_it() -> None:
    said = "Permission Denied: Try running again with elevated permissions by going 'sudo env ...'"
    error = diagnose.refusal_of(said)
    assert isinstance(error, diagnose.Forbidden)
    assert "ptrace" in str(error) or "root" in str(error)


def test_other_words_of_pyspy_are_passed_on_in_one_line() -> None:
    error = diagnose.refusal_of("Error: Unsupported version of Python: 2.3\n\nStack backtrace:\n 0")
    assert str(error) == "py-spy: Error: Unsupported version of Python: 2.3"


def test_a_stopped_process_is_read_without_being_paused(program: str, busy: int) -> None:
    os.kill(busy, signal.SIGSTOP)
    try:
        wait_until_stopped(busy)
        threads = diagnose.stacks(program, [busy])
    finally:
        os.kill(busy, signal.SIGCONT)
    names = {frame["name"] for thread in threads for frame in thread["frames"]}
    assert {"count_fish", "wait_for_tide"} <= names
    assert not diagnose.is_stopped(os.getpid())


def wait_until_stopped(pid: int) -> None:
    end = time.monotonic() + 10
    while not diagnose.is_stopped(pid):
        assert time.monotonic() < end, "the process never stopped"


@pytest.mark.parametrize("does", ["exit 0", "echo Error: No stack counts found >&2; exit 1"])
@pytest.mark.parametrize("form", ["speedscope", "flamegraph"])
def test_an_idle_process_has_an_empty_profile(
    tmp_path: Path, does: str, form: diagnose.Format
) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o700)
    asked = {"seconds": 1.0, "rate_hz": 10, "form": form, "children": ()}
    captured = diagnose.profile(str(program), os.getpid(), **asked)  # pyright: ignore
    assert b"no samples: the process was idle" in captured
    if form == "speedscope":
        assert json.loads(captured)["profiles"] == []
    with pytest.raises(diagnose.CaptureFailed, match="ended during"):
        diagnose.profile(str(program), 2**22 + 1, **asked)  # pyright: ignore
