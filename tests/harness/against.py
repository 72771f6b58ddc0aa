"""Run tests of real nodes against an older commit, and say which assertion fails there.

    python -m tests.harness.against [COMMIT] [-k EXPRESSION] [--tests FILE]

The commit (964311d, which was inspected, unless another is named) is cloned into a temporary
folder; the nodes that the tests start run its code, the tests themselves are today's. The table
has a row per test: its name, how it ended there, and the assertion.
Exits 1 unless every test fails there for at least one of its parameters: one that passes, or that
could not run, shows nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as Xml
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSPECTED = "964311d"
POOL_RULES = "tests/processes/test_pool_rules.py"
SECONDS = 3600.0


def run_against(commit: str, expression: str, tests: str) -> list[tuple[str, str, str]]:
    """Return (test, outcome, first line of the failure) of each test on that commit."""
    with tempfile.TemporaryDirectory(prefix="shoal-inspected-") as folder:
        tree, report = Path(folder) / "tree", Path(folder) / "report.xml"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
        subprocess.run(["git", "-C", str(tree), "checkout", "-q", commit], check=True)
        words = ["-q", "-n", "0", "-p", "no:cacheprovider", f"--junitxml={report}"]
        subprocess.run(
            [sys.executable, "-m", "pytest", *words, "-k", expression, tests],
            cwd=ROOT,
            env={**os.environ, "INSPECTED_TREE": str(tree)},
            stdout=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
        return [_row(case) for case in Xml.parse(report).iter("testcase")]


def _row(case: Xml.Element) -> tuple[str, str, str]:
    name = case.get("name", "")
    for outcome in ("failure", "error", "skipped"):
        found = case.find(outcome)
        if found is not None:
            said = (found.get("message") or "").strip().splitlines() or [""]
            return name, outcome, said[0]
    return name, "passed", ""


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.against")
    parser.add_argument("commit", nargs="?", default=INSPECTED)
    parser.add_argument("-k", dest="expression", default="", help="which tests, as in pytest")
    parser.add_argument("--tests", default=POOL_RULES, help="the file of the tests")
    asked = parser.parse_args()
    rows = run_against(asked.commit, asked.expression, asked.tests)
    for name, outcome, said in rows:
        print(f"{outcome:8} {name}\n         {said}" if said else f"{outcome:8} {name}")
    outcomes: dict[str, set[str]] = {}
    for name, outcome, _ in rows:
        outcomes.setdefault(name.partition("[")[0], set()).add(outcome)
    show_nothing = [name for name, found in outcomes.items() if "failure" not in found]
    print(f"{len(outcomes)} tests, {len(outcomes) - len(show_nothing)} fail on {asked.commit}")
    if show_nothing:
        print(f"these do not: {', '.join(show_nothing)}")
    return 1 if show_nothing or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
