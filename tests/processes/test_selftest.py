"""`shoal selftest` at full size: it passes here, and planted faults turn the right line red."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.cli.selftest.selftest import NAMES
from tests.harness.commands import CODE, ROOT, command
from tests.harness.mutants import LEFT_OUT
from tests.harness.mutations import Mutant
from tests.harness.nodes import variables

pytestmark = [pytest.mark.proof, pytest.mark.nodes, pytest.mark.timeout(700)]
WHOLE_S = 620.0
SAMPLER = "runner/mlx/sampling/batch_sampler.py"
FAULTS = {
    "seeds are ignored": (
        "sampling",
        "seeds",
        Mutant(SAMPLER, "key_words(d.seed, d.position)", "key_words(0, d.position)", ""),
    ),
    "temperature is inverted": (
        "sampling",
        "frequencies",
        Mutant(SAMPLER, "1.0 / d.sampling.temperature", "d.sampling.temperature", ""),
    ),
    "a kept prefix is cut one token early": (
        "kv",
        "full",
        Mutant(
            "runner/mlx/kv/prefixes.py",
            "past = cache.past(length)",
            "past = cache.past(max(1, length - 1))",
            "",
        ),
    ),
    "the bill is halved": (
        "memory",
        "peak",
        Mutant(
            "master/placement/memory_cost.py",
            "return int(self.weights * self.overhead) + self.kv + FIXED_BYTES",
            "return (int(self.weights * self.overhead) + self.kv + FIXED_BYTES) // 2",
            "",
        ),
    ),
}


def run_on(tree: Path, home: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Run the self-test of a tree; return its exit code and its document."""
    env = variables({"TMPDIR": str(home), "HOME": str(home)})
    done = command("selftest", "--json", *words, env=env, timeout=WHOLE_S, tree=tree)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads(done.stdout)
    for line in found["lines"]:
        print(f"{line['outcome']:<14}  {line['check']}: {line['part']}: {line['text']}")
    print(f"{found['seconds']} s")
    return done.returncode, found


@pytest.fixture
def short_home() -> Iterator[Path]:
    """A folder with a short name."""
    home = Path("/tmp") / f"st-{os.getpid()}"
    home.mkdir()
    yield home
    shutil.rmtree(home)


def test_every_check_passes_on_this_machine(short_home: Path) -> None:
    _, found = run_on(ROOT, short_home)
    assert {line["check"] for line in found["lines"]} == set(NAMES)
    failed = [line for line in found["lines"] if line["outcome"] == "failed"]
    # a machine without OpenBLAS is told to install it
    assert [line["check"] for line in failed] in ([], ["blas"])
    assert found["seconds"] < 600
    assert not [path for path in short_home.iterdir() if path.name.startswith("shoal-selftest-")]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_turns_its_line_red(tmp_path: Path, short_home: Path, name: str) -> None:
    check, part, fault = FAULTS[name]
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
    file = tree / fault.file
    file.write_text(fault.applied(file.read_text()))
    code, found = run_on(tree, short_home, "--only", check)
    red = {line["part"] for line in found["lines"] if line["outcome"] == "failed"}
    assert code == 1 and part in red, name


def test_an_interrupt_during_the_start_of_a_node_leaves_nothing(short_home: Path) -> None:
    env = variables({"TMPDIR": str(short_home), "HOME": str(short_home)})
    words = [sys.executable, "-P", "-c", CODE, "selftest", "--only", "node"]
    child = subprocess.Popen(words, env=env | {"PYTHONPATH": str(ROOT)}, stdout=-1, stderr=-1)
    try:
        ends_at = time.monotonic() + 60.0
        while not any("runner" in text for text in below(short_home)):
            assert time.monotonic() < ends_at and child.poll() is None
            time.sleep(0.1)
        os.kill(child.pid, signal.SIGINT)
        child.communicate(timeout=120.0)
    finally:
        child.kill()
    assert child.returncode == 130
    assert below(short_home) == []
    assert not [path for path in short_home.iterdir() if path.name.startswith("shoal-selftest-")]


def below(home: Path) -> list[str]:
    """The command lines of the processes whose home is in a folder."""
    lines: list[str] = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        environ: dict[str, str] = process.info["environ"] or {}
        if environ.get("SHOAL_HOME", "").startswith(str(home)):
            lines.append(" ".join(process.info["cmdline"] or ()))
    return lines
