"""The result of one check of `shoal doctor`, and the commands that fix it.

Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from bus.wire.errors import ShoalError

Level = Literal["ok", "warn", "error"]


@dataclass(frozen=True, slots=True)
class Fix:
    """The commands that fix a problem, in their order. Then the commands in `proof` check that the
    problem is gone. If one of them fails, the commands in `undo` are run. Commands are tuples of
    words; no shell reads them."""

    commands: tuple[tuple[str, ...], ...]
    proof: tuple[tuple[str, ...], ...] = ()
    undo: tuple[tuple[str, ...], ...] = ()

    @property
    def words(self) -> str:
        """Return the commands as text for a remedy."""
        return ", then ".join(f"`{shlex.join(command)}`" for command in self.commands)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. `found` tells the user the result. `remedy` is empty if and only if
    `level` is ok. `fix` is None if `shoal doctor --fix` cannot remove the problem."""

    name: str
    level: Level
    found: str
    remedy: str = ""
    fix: Fix | None = None


def guarded(name: str, checks: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the checks' findings. If a check raises an expected error, yield a warning and stop."""
    try:
        yield from checks
    except (OSError, ShoalError, ValueError) as error:
        yield Finding(name, "warn", f"check failed: {error}", "see `shoal logs`")
