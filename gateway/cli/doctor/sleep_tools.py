"""What the systems' own tools say about sleep and clocks, read into facts.

Pure: a tool's output in, facts out; text that is not what the tool says gives no facts. Formats:
pmset(1), systemd's `show` (NAME=VALUE), logind.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MacSleep:
    """When a Mac sleeps, and what keeps it awake.

    `after_min` is minutes of idleness, 0 for never, None where it is not said; `disabled`: sleep
    is switched off altogether; `held_by` keep the Mac awake just now.
    """

    after_min: int | None
    disabled: bool
    held_by: tuple[str, ...]


def mac_sleep(pmset: str) -> MacSleep:
    """Return what `pmset -g` says."""
    line = re.search(r"^\s*sleep\s+(\d+)(?:\s+\(sleep prevented by (.+)\))?", pmset, re.MULTILINE)
    disabled = re.search(r"^\s*SleepDisabled\s+1\b", pmset, re.MULTILINE)
    held = line.group(2) if line else None
    return MacSleep(
        after_min=int(line.group(1)) if line else None,
        disabled=disabled is not None,
        held_by=tuple(part.strip() for part in held.split(",")) if held else (),
    )


def shown(text: str) -> tuple[Mapping[str, str], ...]:
    """Return what `systemctl show` and its kin say: one map for each unit, in order."""
    blocks = re.split(r"\n\s*\n", text.strip())
    found = (dict(re.findall(r"^([A-Za-z]+)=(.*)$", block, re.MULTILINE)) for block in blocks)
    return tuple(one for one in found if one)


def is_masked(unit: Mapping[str, str]) -> bool:
    """Return whether a unit cannot be started at all."""
    return unit.get("LoadState") == "masked" or unit.get("UnitFileState") == "masked"


def logind_settings(*files: str) -> dict[str, str]:
    """Return the settings of logind.conf and its drop-ins; a later file's value counts."""
    found: dict[str, str] = {}
    for text in files:
        found.update(re.findall(r"^\s*([A-Za-z]+)\s*=\s*(\S+)\s*$", text, re.MULTILINE))
    return found
