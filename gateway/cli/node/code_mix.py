"""Talks to the lock files of one home: which code its processes run, and whether that is a mix.

Each process writes the code that it was started from into its lock file. One of a version that did
not yet do so tells nothing, which is other code than this command's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bus.process.tree import installed_code
from conf.paths import Paths
from gateway.cli.node.processes import lock_holder

UNTOLD = "an older version"
REMEDY = "run `shoal restart` to start all processes from the installed code"


def running_codes(paths: Paths) -> dict[str, str]:
    """Return what each live process of this home was started from, by its name."""
    files = sorted(paths.runtime.glob("*.role"))
    return {path.stem: _code_in(path) for path in files if lock_holder(path) is not None}


def mix(paths: Paths) -> str:
    """Return what runs beside what; empty where all run what this command is of."""
    return describe_mix(running_codes(paths), installed_code())


def describe_mix(running: Mapping[str, str], installed: str) -> str:
    """Return in words which processes run other code than is installed; empty for none."""
    others: dict[str, list[str]] = {}
    for name, code in running.items():
        if code != installed:
            others.setdefault(code, []).append(name)
    if not others:
        return ""
    found = "; ".join(f"{', '.join(names)}: {code}" for code, names in sorted(others.items()))
    return f"processes run other code than the installed one ({installed}): {found}"


def _code_in(path: Path) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return UNTOLD
    return lines[1] if len(lines) > 1 else UNTOLD
