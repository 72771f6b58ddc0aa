"""Runs the three parts of the test suite, one after the other: what may run side by side, what
starts nodes, what measures. Each part runs whole, also when one before it failed.

With `--again`, tests that failed are run a second time, one after the other: CI's machines are
lent and their cores shared, and of some 9,000 tests with real processes one may lose a race
against its own deadline. One that fails twice fails the run, and what failed once is listed last.
CPython's own tests are run so (its `--rerun`).

    python -m tests.harness.parts [--again]
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOLD = ("--durations", "20", "-r", "s")
SIDE_BY_SIDE = str((os.cpu_count() or 1) + 1)
"""One more than there are cores, for a fifth of their time went by in waits with as many."""
PARTS = (
    ("-m", "not nodes and not alone and not proof", "-n", SIDE_BY_SIDE, "--dist", "worksteal"),
    ("-m", "nodes and not proof", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
    ("-m", "alone and not proof"),
)
FAILED = 1
"""pytest's exit status when all tests ran and some failed; others tell of what broke it off."""
MOST_AGAIN = 10
"""More failures than this are no bad luck."""


def run(parts: Sequence[Sequence[str]], *, again: bool, root: Path = ROOT) -> int:
    """Run each part of the tests in `root`; with `again`, the failed ones a second time. Returns
    the exit status: 0 when each test passed, in the end."""
    _failures(root).unlink(missing_ok=True)
    said = {_pytest(root, *part, *TOLD) for part in parts}
    failed = _failed(root)
    if not again or said - {0} != {FAILED} or not 0 < len(failed) <= MOST_AGAIN:
        return next(iter(said - {0, FAILED}), max(said))
    status = _pytest(root, "--last-failed", "--last-failed-no-failures", "none", "-r", "s")
    twice = _failed(root)
    print("Failed once, and run a second time:")
    for name in failed:
        print(f"  {'failed again' if name in twice else 'passed      '}  {name}")
    return status


def _pytest(root: Path, *words: str) -> int:
    command = [sys.executable, "-m", "pytest", "tests", *words]
    print(shlex.join(command), flush=True)
    return subprocess.run(command, cwd=root, check=False).returncode


def _failures(root: Path) -> Path:
    """Where pytest keeps the names of the tests whose last run failed."""
    return root / ".pytest_cache" / "v" / "cache" / "lastfailed"


def _failed(root: Path) -> list[str]:
    kept = _failures(root)
    return sorted(json.loads(kept.read_text())) if kept.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the tests, part after part.")
    parser.add_argument("--again", action="store_true", help="run what failed a second time")
    asked = parser.parse_args()
    sys.exit(run(PARTS, again=asked.again))


if __name__ == "__main__":
    main()
