"""Runs today's tests on the product of an earlier commit: what each printed there, and now.

    python -m tests.harness.before COMMIT [--only T3,A1] [--out FILE]

`before.toml` names tests by what they show. The product of the commit (its packages, and nothing
else of it) is put into a folder with the tests of this tree, and they run there with this
interpreter; then they run on a copy of this tree. The table has one row for each test: its first
words where it fails. "not there": the test needs a part that the commit does not have.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness.other_trees import PACKAGES, tree_of

ROOT = Path(__file__).parents[2]
NAMED = Path(__file__).with_suffix(".toml")
LONGEST = 160
"""Characters of what a test printed."""
NOT_THERE = ("ModuleNotFoundError", "ImportError", "AttributeError", "TypeError")
_ASSERTIONS = ("assert", "AssertionError", "Failed: DID NOT RAISE")
_OTHERS = ("SHOAL_", "PYTEST_")
"""How variables of the environment begin that are no business of the runs."""
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "make", ".hypothesis")


def ran(tree: Path, tests: Sequence[str], folder: Path) -> dict[str, str]:
    """Return what each test said in a tree; "" for those that passed. Each folder of tests runs in
    a process of its own, so that one that ends its process takes few others along."""
    chosen, outcomes = folder / "chosen", folder / "outcomes"
    chosen.write_text("\n".join(tests))
    outcomes.unlink(missing_ok=True)
    told = {key: one for key, one in os.environ.items() if not key.startswith(_OTHERS)}
    told |= {
        "PYTHONPATH": str(tree),
        "TESTS_CHOSEN": str(chosen),
        "TESTS_SAID": str(outcomes),
    }
    where = _where(tree, told)
    if not where.is_relative_to(tree):
        raise RuntimeError(f"the product is imported from {where}, not from {tree}")
    by_folder: dict[str, list[str]] = {}
    for file in sorted({test.partition("::")[0] for test in tests}):
        by_folder.setdefault("/".join(file.split("/")[:2]), []).append(file)
    for files in by_folder.values():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.harness.chosen_tests",
                   "-p", "no:cacheprovider", "--continue-on-collection-errors", "--timeout", "120",
                   *files]  # fmt: skip
        done = subprocess.run(
            command, cwd=tree, env=told, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 1, 2):
            print(f"{files[0]} and others: pytest ended with {done.returncode}", file=sys.stderr)
            print(done.stdout[-1000:], done.stderr[-1000:], file=sys.stderr)
    found: dict[str, str] = {}
    for line in map(json.loads, outcomes.read_text().splitlines()):
        found[line["test"]] = found.get(line["test"]) or line["said"]
    return found


def _where(tree: Path, told: Mapping[str, str]) -> Path:
    """Return the file that a process of that tree imports the product from."""
    code = "import bus.wire, gateway; print(gateway.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=dict(told), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return Path(done.stdout.strip()).resolve()


def before(commit: str, folder: Path) -> Path:
    """Return a tree with the product of a commit and the tests of this one."""
    tree = tree_of(commit, folder)
    if tree is None:
        sys.exit(f"the history does not hold {commit}")
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=_LEFT_OUT)
    return tree


def now(folder: Path) -> Path:
    """Return a copy of this tree's product and tests."""
    tree = folder / "now"
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=_LEFT_OUT)
    shutil.copy(ROOT / "pyproject.toml", tree)
    return tree


def row(name: str, tests: Sequence[str], was: Mapping[str, str], is_: Mapping[str, str]) -> str:
    """Return the row of a defect: its test that says most of the earlier commit, and what it says
    there and now."""
    if not tests:
        return f"| {name} | no test | | |"
    best = min((_told(test, was) for test in tests), key=lambda one: one[0])
    told_now = [one for test in tests if (one := _told(test, is_))[1] != "passes"]
    ends = "passes" if not told_now else "; ".join(one[1] for one in told_now)
    if len(tests) > 1 and not told_now:
        ends = "all pass"
    return f"| {name} | `{best[2]}` | {best[1]} | {ends} |"


def _told(test: str, found: Mapping[str, str]) -> tuple[int, str, str]:
    """Return how much an outcome says (0: most), what it says, and the test's whole id."""
    file = test.partition("::")[0]
    matching = [(name, said) for name, said in found.items() if name.startswith(test)]
    failed = [(name, said) for name, said in matching if said]
    if failed:
        name, said = min(failed, key=lambda one: _vagueness(one[1]))
        words = _words(said)
        count = f" ({len(failed)} of {len(matching)} fail)" if len(matching) > 1 else ""
        if said.startswith(NOT_THERE):
            return 2, f"the part was not there: {words}{count}", name
        return _vagueness(said), f"{words}{count}", name
    if matching:
        return 4, "passes", matching[0][0] if len(matching) == 1 else test
    if file in found:
        return 3, f"the part was not there: {_words(found[file])}", test
    return 5, "did not run", test


def _vagueness(said: str) -> int:
    """Return how little a failure says of what was wrong: assertions say most."""
    return 0 if said.startswith(_ASSERTIONS) else 1 + said.startswith(NOT_THERE)


def _words(said: str) -> str:
    text = " ".join(said.partition("\n")[0].replace("|", "\\|").split())
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def main(arguments: Sequence[str]) -> int:
    """Run the tests on both trees and print the table; 1 where one fails now."""
    parser = argparse.ArgumentParser(prog="tests.harness.before", description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--only", default="", help="names, apart by commas")
    parser.add_argument("--out", type=Path, help="a file for the table as well")
    options = parser.parse_args(arguments)
    named: dict[str, list[str]] = tomllib.loads(NAMED.read_text())["tests"]
    only: list[str] = options.only.split(",") if options.only else []
    named = {name: tests for name, tests in named.items() if not only or name in only}
    tests = [test for found in named.values() for test in found]
    with tempfile.TemporaryDirectory(prefix="shoal-before-") as place:
        folder = Path(place)
        was = ran(before(options.commit, folder), tests, folder)
        is_ = ran(now(folder), tests, folder)
    lines = [f"| | test | on {options.commit} | now |", "|---|---|---|---|"]
    lines += [row(name, found, was, is_) for name, found in named.items()]
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")
    return int(any(is_.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
