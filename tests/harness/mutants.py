"""Mutants of named rooms, from a printed seed, each against the tests that execute its line.

`python -m tests.harness.mutants [--rooms gateway/http,...] [--seed N] [--count 60] [--tree OTHER]`.
It works in copies of the tree, never in a checkout. A change is chosen by a hash of the seed and of
the change's own text, so that the same ones are chosen in two trees wherever both have them. Only
lines that a test executes are changed, and no texts of messages. `--planted` runs the faults of
`planted_faults` instead. Needs `coverage`, which is no dependency.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.harness.covered_lines import CoveredLines
from tests.harness.forked_tests import Run, import_others, wait_for_one
from tests.harness.mutations import Made, Mutant, Site, Verdict, all_changes, mutated
from tests.harness.planted_faults import FAULTS

ROOT = Path(__file__).parents[2]
ROOMS = (
    "gateway/requests", "gateway/http", "runner/schedule", "runner/text", "worker/slots",
    "master/pool", "master/consensus", "bus/membership",
)  # fmt: skip
TESTS = (
    "tests/gateway/requests", "tests/gateway/http", "tests/runner/schedule", "tests/runner/text",
    "tests/worker/slots", "tests/worker/test_seats.py", "tests/worker/test_collective_seats.py",
    "tests/worker/test_fetch_reconcile.py", "tests/worker/test_node_in_memory.py", "tests/master",
    "tests/bus/membership", "tests/sim",
)  # fmt: skip
"""The tests that are looked at for lines: those of the rooms, without nodes."""
FAST = "not slow and not proof and not nodes"
AT_ONCE = 2
STARTUP_CPU_S, TIMES, WALL_TIMES = 30, 5, 20.0
"""A mutant has the CPU seconds of a start and five times those of its tests; and 20 times as long
by the clock, for a machine that others use."""
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".hypothesis", "*-results", "node_modules")


@dataclass(frozen=True)
class Candidate:
    """One change that may be chosen. `rank` is its place by the seed."""

    rank: str
    file: str
    line: int
    site: Site


def candidates(file: str, text: str, lines: set[int], seed: int) -> Iterator[Candidate]:
    """Return the changes of a module's executed lines."""
    tree = ast.parse(text)
    said = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
        for inner in ast.walk(node)
    } | {
        id(inner) for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None for inner in ast.walk(part)
    }  # fmt: skip
    times: Counter[str] = Counter()
    for number, node in enumerate(ast.walk(tree)):
        line = getattr(node, "lineno", 0)
        if id(node) in said or line not in lines:
            continue
        for which, new in enumerate(all_changes(node)):
            change = f"{seed} {file} {ast.unparse(node)} {ast.unparse(new)}"
            times[change] += 1
            whole = f"{change} {times[change]}".encode()
            yield Candidate(hashlib.sha256(whole).hexdigest(), file, line, (number, which))


def chosen(
    tree: Path, covered: CoveredLines, rooms: Sequence[str], *, seed: int, count: int
) -> list[Made]:
    """Return the mutants of a seed: the rooms in turn, no line twice."""
    by_room: list[list[Candidate]] = []
    for room in rooms:
        found: list[Candidate] = []
        for file, by_line in sorted(covered.lines.items()):
            if file.startswith(f"{room}/"):
                found += candidates(file, (tree / file).read_text(), set(by_line), seed)
        by_room.append(sorted(found, key=lambda one: one.rank, reverse=True))
    made: list[Made] = []
    taken: set[tuple[str, int]] = set()
    while len(made) < count and any(by_room):
        for found in by_room:
            while found and (found[-1].file, found[-1].line) in taken:
                found.pop()
            if found and len(made) < count:
                one = found.pop()
                taken.add((one.file, one.line))
                text = (tree / one.file).read_text()
                made.append(mutated(one.file, text, one.site, all_changes))
    return made


@dataclass(frozen=True)
class Job:
    """A mutant, the tests that are to notice it, and the CPU seconds that they take without it."""

    mutant: Made | Mutant
    tests: Sequence[str]
    costs_s: float


class Copies:
    """Copies of a tree in which mutants are tried, one after the other in each."""

    def __init__(self, tree: Path, stack: ExitStack) -> None:
        self.trees: list[Path] = []
        for _ in range(AT_ONCE):
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-mutants-"))
            self.trees.append(Path(name) / "tree")
            shutil.copytree(tree, self.trees[-1], ignore=LEFT_OUT)

    def tried(self, jobs: Sequence[Job]) -> Iterator[Verdict]:
        """Try mutants, one in each copy at a time; verdicts come as they are found."""
        waiting, free = list(jobs), list(self.trees)
        running: dict[Path, tuple[Run, Job, str]] = {}
        while waiting or running:
            while waiting and free:
                job, tree = waiting.pop(0), free.pop()
                file = tree / job.mutant.file
                text = file.read_text()
                file.write_text(job.mutant.applied(text))
                running[tree] = (run_of(tree, job.tests, job.costs_s).begin(), job, text)
            ended = wait_for_one([run for run, _, _ in running.values()])
            _, job, text = running.pop(ended.tree)
            (ended.tree / job.mutant.file).write_text(text)
            free.append(ended.tree)
            yield Verdict(job.mutant, ended.failed)

    def unsound(self, verdicts: Sequence[Verdict]) -> str:
        """Return which test that caught a mutant fails where nothing is changed, too; "" for
        none."""
        names = sorted({one.caught_by for one in verdicts if "::" in one.caught_by})
        return wait_for_one([run_of(self.trees[0], names, 600.0).begin()]).failed if names else ""


def run_of(tree: Path, tests: Sequence[str], costs_s: float) -> Run:
    """Return a run of tests that take so many CPU seconds, within its bounds."""
    cpu_s = STARTUP_CPU_S + int(TIMES * costs_s)
    return Run(tree, tests, cpu_s, WALL_TIMES * cpu_s)


def mapped(
    tree: Path, rooms: Sequence[str], tests: Sequence[str], kept: Path | None
) -> CoveredLines:
    """Return the map of a copy of a tree, made anew unless it is kept in a file."""
    file = (kept or tree.parent / "map.json").absolute()
    if not file.exists():
        if importlib.util.find_spec("coverage") is None:
            sys.exit("mutants need coverage: .venv/bin/python -m pip install coverage")
        plugin = "tests/harness/covered_lines.py"
        shutil.copy(ROOT / plugin, tree / plugin)
        variables = {"SHOAL_COVERED": str(file), "SHOAL_COVERED_ROOMS": ",".join(rooms)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.harness.covered_lines",
                   "-p", "no:cacheprovider", "--timeout", "600", "-m", FAST]  # fmt: skip
        there = [one for one in tests if (tree / one).exists()]
        subprocess.run([*command, *there], cwd=tree, env=os.environ | variables, check=False)
    return CoveredLines.read(file)


def main(arguments: Sequence[str]) -> int:
    """Make, try and count; 1 where a test that caught a mutant fails without it."""
    parser = argparse.ArgumentParser(prog="tests.harness.mutants", description=__doc__)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--seed", type=int, default=35)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--least", type=int, default=0, help="fail where fewer are caught")
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--tests", default=",".join(TESTS), help="where tests of lines are sought")
    parser.add_argument("--map", type=Path, help="a map of lines; made here where it is not there")
    parser.add_argument("--planted", action="store_true", help="the old faults instead")
    options = parser.parse_args(arguments)
    os.nice(10)
    with ExitStack() as stack:
        copies = Copies(options.tree, stack)
        if options.planted:
            jobs = [Job(one.mutant, one.tests, 60.0) for one in FAULTS]
        else:
            jobs = jobs_of_seed(copies.trees[0], options)
        import_others()
        verdicts: list[Verdict] = []
        for one in copies.tried(jobs):
            verdicts.append(one)
            print(f"{len(verdicts):3}", one.line(), flush=True)
        caught = sum(bool(one.caught_by) for one in verdicts)
        print(f"{caught} of {len(verdicts)} are caught", flush=True)
        if wrong := copies.unsound(verdicts):
            print(f"fails where nothing is changed: {wrong}")
        return int(bool(wrong) or caught < (len(jobs) if options.planted else options.least))


def jobs_of_seed(tree: Path, options: argparse.Namespace) -> list[Job]:
    """Return the mutants of a seed in a copy of a tree, each with its tests."""
    rooms = options.rooms.split(",")
    covered = mapped(tree, rooms, options.tests.split(","), options.map)
    sizes = covered.sizes()
    made = chosen(tree, covered, rooms, seed=options.seed, count=options.count)
    print(f"seed {options.seed}, {len(made)} mutants of {options.tree}", flush=True)
    jobs: list[Job] = []
    for one in made:
        tests = covered.chosen(one.file, one.line, sizes)
        jobs.append(Job(one, tests, sum(covered.costs[test] for test in tests)))
    return jobs


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
