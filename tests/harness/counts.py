"""Counts what tests start, for `parts`: a line per start in the file that a variable names.

Nodes and runners are counted when a node is closed, by what its supervisord has logged: whoever
started them, and also what was started anew. Runners of a test without a node, calls of the command
line and testbeds are counted where the harness starts them. A call that a test repeats until its
answer is right counts once, or a slow machine would start more. Nodes of `shoal lab` are not
counted.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "PARTS_COUNTS"
KINDS = ("nodes", "runners", "calls", "testbeds")
CPU = "cpu"
"""What a line with the CPU seconds of a file of tests begins with."""
NODE = re.compile(r"supervisord started with pid")
RUNNER = re.compile(r"spawned: '\d+' with pid")
_last_call: tuple[str, tuple[str, ...]] | None = None


def count(kind: str, number: int = 1) -> None:
    """Note that a test starts so many of a kind; nothing where nobody counts."""
    assert kind in KINDS, kind
    file = os.environ.get(VARIABLE)
    if file and number:
        with open(file, "a") as lines:
            lines.write(f"{kind} {number}\n")


def count_call(words: Sequence[str]) -> None:
    """Count a call of the command line, unless it is the last one of this process again."""
    global _last_call
    call = (os.environ.get("PYTEST_CURRENT_TEST", ""), tuple(words))
    if call != _last_call:
        _last_call = call
        count("calls")


def count_node(logs: Path) -> None:
    """Count the starts that the supervisord of a home has logged in this folder."""
    text = "".join(path.read_text(errors="replace") for path in logs.glob("supervisord.log*"))
    count("nodes", len(NODE.findall(text)))
    count("runners", len(RUNNER.findall(text)))


def counted(file: Path) -> Counter[str]:
    """Return how many of each kind a file tells of."""
    found = Counter[str]()
    for kind, number, *_ in _lines(file):
        if kind in KINDS:
            found[kind] += int(number)
    return found


def count_cpu(of: str, seconds: float) -> None:
    """Note CPU seconds that the tests of a file took; nothing where nobody counts."""
    file = os.environ.get(VARIABLE)
    if file:
        with open(file, "a") as lines:
            lines.write(f"{CPU} {seconds:.2f} {of}\n")


def cpu_of_files(file: Path) -> dict[str, float]:
    """Return the CPU seconds of each file of tests that a file tells of."""
    found: dict[str, float] = {}
    for kind, number, *rest in _lines(file):
        if kind == CPU:
            of = " ".join(rest)
            found[of] = found.get(of, 0.0) + float(number)
    return found


def _lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []
