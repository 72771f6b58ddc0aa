"""Ceilings of the laws that count: read, judged, and written again when a figure shrinks.

A list of exceptions is a TOML file: a line for each subject (a path, a package), in it a figure for
each rule. A figure above its ceiling is a fault. A figure below it is none, so that two people can
mend text at once; `--write` then lowers the ceiling. `--raise` also lifts ceilings, and names each.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

Counts = Mapping[str, Mapping[str, int]]
"""Subject to rule to figure."""
HEAD = "# Ceilings of a law. Figures may only shrink. Written by `{command}`.\n"


def read(path: Path) -> dict[str, dict[str, int]]:
    """Return the ceilings of a file; without a file every ceiling is 0."""
    return tomllib.loads(path.read_text()) if path.exists() else {}


def raised(now: Counts, ceilings: Counts) -> list[tuple[str, str, int, int]]:
    """Return (subject, rule, figure, ceiling) where a figure exceeds its ceiling."""
    return [
        (subject, rule, figure, ceilings.get(subject, {}).get(rule, 0))
        for subject, figures in sorted(now.items())
        for rule, figure in sorted(figures.items())
        if figure > ceilings.get(subject, {}).get(rule, 0)
    ]


def room_to_shrink(now: Counts, ceilings: Counts) -> int:
    """Return by how much all ceilings together exceed their figures."""
    return sum(
        max(0, ceiling - now.get(subject, {}).get(rule, 0))
        for subject, figures in ceilings.items()
        for rule, ceiling in figures.items()
    )


def faults(now: Counts, ceilings: Counts, command: str) -> list[str]:
    """Return one line for each figure that exceeds its ceiling."""
    return [
        f"{subject}: {rule}: {figure}; the ceiling is {ceiling} (see `{command}`)"
        for subject, rule, figure, ceiling in raised(now, ceilings)
    ]


def write(path: Path, now: Counts, command: str, *, lift: bool = False) -> list[str]:
    """Write today's figures as ceilings; return the figures that exceed the old ceilings.

    Without `lift` such figures stop the writing, and the file stays as it is.
    """
    ceilings = read(path)
    over = [
        f"{subject}: {rule}: {ceiling} -> {figure}"
        for subject, rule, figure, ceiling in raised(now, ceilings)
    ]
    if not over or lift:
        path.write_text(_text(now, command))
    return over


def _text(now: Counts, command: str) -> str:
    """Return a file with a line for each subject."""
    lines = [HEAD.format(command=command)]
    for subject, figures in sorted(now.items()):
        there = [f'"{rule}" = {figure}' for rule, figure in sorted(figures.items()) if figure]
        if there:
            lines.append(f'"{subject}" = {{ {", ".join(there)} }}')
    return "\n".join(lines) + "\n"
