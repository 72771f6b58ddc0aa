"""Every line of the page about `shoal monitor` runs as printed, against a gateway."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.gateway_testbed import ROOT, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import chat, ready
from tests.harness.typed_lines import CODE, examples, typed


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as found:
        found.runner()
        eventually(lambda: ready(found), 10, "the instance is ready")
        chat(found, "tokens=3")
        yield found


@pytest.mark.parametrize("line", [one for one in examples("monitor") if "--once" in one])
def test_each_line_that_ends_runs_as_printed(
    made: GatewayTestbed, tmp_path: Path, line: str
) -> None:
    found = typed(made, tmp_path, line)
    assert found.returncode == 0, found.stderr
    (said,) = found.stdout.splitlines()
    if "--json" in line:
        told = json.loads(said)
        assert len(told["cluster"]["instances"]) == 1
        assert set(told["pool"]) >= {"queue", "loads", "waits", "copies", "pins"}
    else:
        assert "1 instance, 1 ready" in said


@pytest.mark.parametrize("line", [one for one in examples("monitor") if "--once" not in one])
def test_each_line_that_goes_on_says_a_line_and_ends_with_ctrl_c(
    made: GatewayTestbed, tmp_path: Path, line: str
) -> None:
    own = {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "SHOAL_HOME": str(tmp_path)}
    program = subprocess.Popen(
        [sys.executable, "-P", "-c", CODE, "--url", made.url, *shlex.split(line)[1:]],
        cwd=tmp_path, env={**os.environ, **own}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        assert program.stdout is not None
        assert "1 instance, 1 ready" in program.stdout.readline()
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=30)
        assert program.returncode == 130 and "Traceback" not in said
    finally:
        program.kill()
        program.wait()


def test_there_are_examples_of_each_way_to_look() -> None:
    assert len(examples("monitor")) == 3
