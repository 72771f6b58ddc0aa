"""One line of the self-test. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["passed", "failed", "not applicable"]
Figure = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class SelftestLine:
    """The result of one part of a check. `text` has the figures and the tolerance for people.
    `advice` is one sentence, present if and only if the part failed."""

    check: str
    part: str
    outcome: Outcome
    text: str
    figures: Mapping[str, Figure] = field(default_factory=dict[str, Figure])
    advice: str = ""


def judged(
    name: tuple[str, str],
    is_good: bool,
    text: str,
    advice: str,
    figures: Mapping[str, Figure] | None = None,
) -> SelftestLine:
    """Return a line that passed or failed; `advice` is for a failure. `name` is check and part."""
    outcome: Outcome = "passed" if is_good else "failed"
    return SelftestLine(*name, outcome, text, figures or {}, "" if is_good else advice)


def not_applicable(name: tuple[str, str], why: str) -> SelftestLine:
    """Return a line for a part that this machine lacks."""
    return SelftestLine(*name, "not applicable", why)
