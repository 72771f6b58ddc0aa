"""Talks to the lock files of one home: compares the code of its processes with the installed code.

Each process writes its code's version and tree hash into its lock file at its start. Old versions
of shoal do not; their processes count as running other code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bus.process.installation import installed_code
from conf.paths import Paths
from gateway.cli.node.processes import lock_holder

UNTOLD = "an older version"
REMEDY = "run `shoal restart` to start all processes from the installed code"


def running_codes(paths: Paths) -> dict[str, str]:
    """Return the code of each live process of this home, by process name."""
    files = sorted(paths.runtime.glob("*.role"))
    return {path.stem: _code_in(path) for path in files if lock_holder(path) is not None}


def mix(paths: Paths) -> str:
    """Return a text that names the processes of the node whose code differs from this command's;
    empty if none does."""
    return describe_mix(running_codes(paths), installed_code())


def describe_mix(running: Mapping[str, str], installed: str) -> str:
    """Return a text that names the processes whose code differs from the installed code; empty if
    none does."""
    others: dict[str, list[str]] = {}
    for name, code in running.items():
        if code != installed:
            others.setdefault(code, []).append(name)
    if not others:
        return ""
    others_text = "; ".join(f"{', '.join(names)}: {code}" for code, names in sorted(others.items()))
    return f"processes run other code than the installed one ({installed}): {others_text}"


def _code_in(path: Path) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return UNTOLD
    return lines[1] if len(lines) > 1 else UNTOLD
