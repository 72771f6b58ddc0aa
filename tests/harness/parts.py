"""Runs the parts of the test suite: tests that start no node, and tests that start nodes or groups
of runners. Each part runs whole, also when one before it failed.

Tests with nodes leave an eighth of the processors idle, because they wait for each other. A part of
tests that only compute runs beside them, at the lowest priority, and is printed when it has ended.

At the end it prints what each part took and started, the slowest tests, and what was skipped. A
part that starts more than `ceilings.toml` allows fails the run.

With `--again`, tests that failed are run a second time, one after the other: CI's machines are
lent and their cores shared, and of some 9,000 tests with real processes one may lose a race
against its own deadline. One that fails twice fails the run; what passed the second time is listed
in `.pytest_cache/again.txt`. CPython's own tests are run so (its `--rerun`).

    python -m tests.harness.parts [--again | --fast]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RANKS, WHOLE_NODES
from tests.harness import parts_report
from tests.harness.blas_of_tests import of_tests
from tests.harness.counts import VARIABLE, counted, cpu_of_files
from tests.harness.parts_report import Ran, tests_of

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests"
CEILINGS = Path(__file__).with_name("ceilings.toml")
REAPER = Path(__file__).with_name("reaper.py")
SIDE_BY_SIDE = str((os.cpu_count() or 1) + 3)
"""Three more than there are cores: with two more a quarter of the time went by in waits."""
FAILED = 1
"""pytest's exit status when all tests ran and some failed; others tell of what broke it off."""
OVER = 1
"""The exit status when a part started too much."""
MANY_NEW = 200
MOST_AGAIN = 10
"""More failures than this are no bad luck."""


@dataclass(frozen=True)
class Part:
    """A part of the suite: pytest's words for where its tests are, and which of them. With
    `is_beside`, it runs while the part after it does, at the lowest priority."""

    name: str
    words: tuple[str, ...]
    is_beside: bool = False

    def file(self, root: Path, ending: str) -> Path:
        """Return the path of a file about this part."""
        folder = root / ".pytest_cache" / "parts"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self.name}.{ending}"


@dataclass(frozen=True)
class Running:
    """A part that runs, since `began_s` of the monotonic clock."""

    part: Part
    process: subprocess.Popen[bytes]
    began_s: float


def _places() -> list[str]:
    """Return the folders with nodes and the files with groups."""
    ranks = [file for file in sorted((HERE / "runner").glob("test_*.py"))
             if file.stem.startswith(RANKS)]  # fmt: skip
    return [str(path.relative_to(ROOT)) for path in (*WHOLE_NODES, *ranks)]


WITH_NODES = _places()
COMPUTING = (
    "tests/gateway/dialects", "tests/master/placement", "tests/master/pool", "tests/runner/mlx",
    "tests/runner/schedule", "tests/sim",
)  # fmt: skip
"""Rooms whose tests only compute: they have no deadlines that a process without a core can miss."""
SIDE = ("tests", *(f"--ignore={path}" for path in (*WITH_NODES, *COMPUTING)))
"""Where the tests are that may run side by side. A part collects only its own files: to collect
all takes 18 s of a processor, in each process of pytest."""
QUICK = (
    "tests/bus/wire", "tests/gateway/dialects", "tests/gateway/requests", "tests/master",
    "tests/runner/schedule", "tests/runner/text", "tests/worker/eviction", "tests/worker/models",
    "tests/worker/slots",
)  # fmt: skip
"""The rooms whose tests start next to nothing: half of all tests in a minute or two."""
PARTS = (
    Part("side", (*SIDE, "-m", "not nodes and not proof",
                  "-n", SIDE_BY_SIDE, "--dist", "worksteal")),
    Part("computing", (*COMPUTING, "-m", "not nodes and not proof", "--timeout", "900",
                       "-n", "2", "--dist", "worksteal"), is_beside=True),
    Part("nodes", (*WITH_NODES, "-m", "nodes and not proof",
                   "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")),
)  # fmt: skip
AGAIN = Part("again", ())
"""The part of the tests that failed; its words are their names."""
FAST = (
    Part("fast", (*QUICK, "-m", "not slow and not nodes and not proof",
                  "-n", SIDE_BY_SIDE, "--dist", "worksteal")),
    Part("node", ("tests/first_answer.py",)),
)  # fmt: skip


def run(
    parts: Sequence[Part],
    *,
    again: bool,
    root: Path = ROOT,
    ceilings: Mapping[str, Mapping[str, int]] | None = None,
) -> int:
    """Run each part of the tests in `root`; with `again`, the failed ones a second time. Returns
    the exit status: 0 when each test passed, in the end, and no part started too much."""
    began_s = time.monotonic()
    for part in (*parts, AGAIN):
        _failures(root, part).unlink(missing_ok=True)
    _passed_again(root).unlink(missing_ok=True)
    _rewrite_assertions(root)
    ran = _run_all(root, parts)
    failed = sorted(name for part in parts for name in _failed(root, part))
    status = _status([one.status for one in ran])
    lines: list[str] = []
    if again and status == FAILED and 0 < len(failed) <= MOST_AGAIN:
        twice = replace(AGAIN, words=tuple(failed))
        ran += _run_all(root, [twice])
        status = ran[-1].status
        lines = _report_again(root, failed, _failed(root, twice))
    over = too_many(ran, ceilings or {})
    took_s = time.monotonic() - began_s
    print("\n".join([*parts_report.report(ran, took_s), *lines, *over]), flush=True)
    return status or (OVER if over else 0)


def too_many(ran: Sequence[Ran], ceilings: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a line for each count that is above its ceiling."""
    return [
        f"too many {kind} in part {one.name}: {one.counts[kind]:,}; the limit is {most:,} "
        f"({CEILINGS.name})"
        for one in ran
        for kind, most in ceilings.get(one.name, {}).items()
        if one.counts[kind] > most
    ]


def _rewrite_assertions(root: Path) -> None:
    """Where pytest has not yet rewritten many files of tests, as on a new clone, let it read them,
    a share of them on each core. Each worker of a part would rewrite them all: 27 s of a core."""
    files = sorted(root.glob("tests/**/test_*.py"))
    new = [str(file.relative_to(root)) for file in files if not _is_rewritten(file)]
    if len(new) < MANY_NEW:
        return
    cores = os.cpu_count() or 1
    read = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"]
    sharing = [
        subprocess.Popen([*read, *new[of::cores]], cwd=root, stdout=subprocess.DEVNULL)
        for of in range(cores)
    ]
    for process in sharing:
        process.wait()


def _is_rewritten(file: Path) -> bool:
    tag = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}"
    kept = file.with_name("__pycache__") / f"{file.stem}.{tag}.pyc"
    return kept.exists() and kept.stat().st_mtime >= file.stat().st_mtime


def _run_all(root: Path, parts: Sequence[Part]) -> list[Ran]:
    """Run parts one after the other, but for those that run beside the next."""
    ran: list[Ran] = []
    running: list[Running] = []
    try:
        for part in parts:
            running.append(_start(root, part))
            while running and not part.is_beside:
                ran.append(_end(root, running[-1]))
                running.pop()
    finally:
        for one in running:
            one.process.terminate()
    return ran


def _start(root: Path, part: Part) -> Running:
    """Start a part in processes that are counted."""
    report, counts, junit = (part.file(root, ending) for ending in ("json", "counts", "xml"))
    for file in (report, counts, junit):
        file.unlink(missing_ok=True)
    # each part has a cache of its own, because a session that ends writes all of it
    kept = f"cache_dir={root / '.pytest_cache' / part.name}"
    command = [sys.executable, "-m", "pytest", *part.words, "-o", kept]
    print(shlex.join(command), flush=True)
    began_s = time.monotonic()
    with part.file(root, "txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", str(REAPER), str(report), *command, f"--junitxml={junit}"],
            cwd=root,
            env={**os.environ, **of_tests(), VARIABLE: str(counts)},
            stdin=subprocess.DEVNULL,
            stdout=output if part.is_beside else None,
            stderr=subprocess.STDOUT if part.is_beside else None,
            start_new_session=part.is_beside,
            preexec_fn=_give_way if part.is_beside else None,
        )
    return Running(part, process, began_s)


def _give_way() -> None:
    """Give this process and its children the lowest priority. Linux compares the priorities of
    processes only within a session; a session has one of its own."""
    os.nice(19)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def _end(root: Path, running: Running) -> Ran:
    """Wait for a part. What it leaves is ended."""
    part = running.part
    status = running.process.wait()
    if part.is_beside:
        print(part.file(root, "txt").read_text(errors="replace"), flush=True)
    report, counts, junit = (part.file(root, ending) for ending in ("json", "counts", "xml"))
    used: dict[str, Any] = {"took_s": time.monotonic() - running.began_s, "cpu_s": None, "left": []}
    if report.exists():
        used = json.loads(report.read_text())
    return Ran(
        part.name,
        status,
        used["took_s"],
        used["cpu_s"],
        tuple(used["left"]),
        counted(counts),
        tests_of(junit) if junit.exists() else (),
        cpu_of_files(counts),
    )


def _status(said: Sequence[int]) -> int:
    """Return the one exit status that tells most: what broke a part off, else that tests failed."""
    return next((one for one in said if one not in (0, FAILED)), max(said))


def _report_again(root: Path, failed: Sequence[str], twice: Sequence[str]) -> list[str]:
    """Write down which of the failed tests have passed now. Return a line for each."""
    passed = [name for name in failed if name not in twice]
    _passed_again(root).write_text("".join(f"{name}\n" for name in passed))
    rows = [f"  {'failed again' if name in twice else 'passed      '}  {name}" for name in failed]
    return ["Failed once, and run a second time:", *rows]


def _passed_again(root: Path) -> Path:
    return root / ".pytest_cache" / "again.txt"


def _failures(root: Path, part: Part) -> Path:
    """Return where pytest keeps the names of the tests of a part whose last run failed."""
    return root / ".pytest_cache" / part.name / "v" / "cache" / "lastfailed"


def _failed(root: Path, part: Part) -> list[str]:
    file = _failures(root, part)
    return sorted(json.loads(file.read_text())) if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the tests, part after part.")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--again", action="store_true", help="run what failed a second time")
    how.add_argument("--fast", action="store_true", help="run the quick tests and one node")
    asked = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    ceilings = tomllib.loads(CEILINGS.read_text())
    sys.exit(run(FAST if asked.fast else PARTS, again=asked.again, ceilings=ceilings))


if __name__ == "__main__":
    main()
