"""Tests of the testbed itself: what it starts ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from bus.process.endpoints import Endpoints
from tests.harness import forks
from tests.harness.gateway_testbed import FORKED, ROOT, Runner


class Silent(Runner):
    """A runner that never says that it is up."""

    patience_s = 0.0

    def heard(self, event: str) -> list[dict[str, Any]]:
        return []


def test_a_runner_that_does_not_come_up_is_ended(tmp_path: Path) -> None:
    parent = psutil.Process(forks.server(FORKED, ROOT).pid)
    with pytest.raises(AssertionError, match="the synthetic runner is up"):
        Silent(Endpoints(str(tmp_path)).runner("00"), "inst-1", 1)
    assert parent.children() == []


def test_a_runner_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.harness.synthetic_runner"]
    words = [Endpoints(str(tmp_path)).runner("00"), "inst-1", "1", "1"]
    with subprocess.Popen(
        [*program, *words], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as runner:
        assert runner.stdout is not None and b"up" in runner.stdout.readline()
        assert runner.stdin is not None
        runner.stdin.close()
        assert runner.wait() == 75
