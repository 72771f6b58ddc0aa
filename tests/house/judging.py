"""How a law is judged: what breaks it, less what is excused, plus excuses that are used up.

Pure. A law is a function from a parsed tree to its breaches. A list of excuses may only shrink:
each names its subject, says why, and holds a figure that must not grow; one whose subject no
longer breaks the law is itself a fault, to be removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Breach(NamedTuple):
    """One subject that breaks a law."""

    subject: str
    what: str
    size: int = 1
    """How far: files on the floor, methods, parameters; 1 where there is nothing to count."""


class Excused(NamedTuple):
    """Why a subject may break a law for now, and how far at most."""

    why: str
    at_most: int = 1


def faults(breaches: Sequence[Breach], excused: Mapping[str, Excused]) -> list[str]:
    """Return what is wrong, one line each: breaches not excused, and excuses without a breach."""
    found: list[str] = []
    for breach in breaches:
        excuse = excused.get(breach.subject)
        if excuse is None:
            found.append(f"{breach.subject}: {breach.what}")
        elif breach.size > excuse.at_most:
            found.append(f"{breach.subject}: {breach.what}: grown beyond {excuse.at_most}")
    broken = {breach.subject for breach in breaches}
    found += [
        f"{subject}: no longer breaks the law; remove it from the exceptions"
        for subject in excused
        if subject not in broken
    ]
    found += [f"{subject}: excused without a reason" for subject, e in excused.items() if not e.why]
    return found
