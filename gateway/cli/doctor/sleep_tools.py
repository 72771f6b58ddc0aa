"""Parse the output of system tools about sleep and clocks.

Pure: a tool's output in, facts out. Unknown text gives no facts. Formats: pmset(1), systemd's
`show` (NAME=VALUE), logind.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MacSleep:
    """The sleep settings of a Mac.

    `after_min` is minutes of idleness, 0 for never, None if not reported. `disabled`: sleep is
    switched off altogether. `held_by` are the programs that keep the Mac awake now.
    """

    after_min: int | None
    disabled: bool
    held_by: tuple[str, ...]


def mac_sleep(pmset: str) -> MacSleep:
    """Parse the output of `pmset -g`."""
    line = re.search(r"^\s*sleep\s+(\d+)(?:\s+\(sleep prevented by (.+)\))?", pmset, re.MULTILINE)
    disabled = re.search(r"^\s*SleepDisabled\s+1\b", pmset, re.MULTILINE)
    held = line.group(2) if line else None
    return MacSleep(
        after_min=int(line.group(1)) if line else None,
        disabled=disabled is not None,
        held_by=tuple(part.strip() for part in held.split(",")) if held else (),
    )


def parse_units(text: str) -> tuple[Mapping[str, str], ...]:
    """Parse the output of `systemctl show` and similar tools: one map for each unit, in order."""
    blocks = re.split(r"\n\s*\n", text.strip())
    units = (dict(re.findall(r"^([A-Za-z]+)=(.*)$", block, re.MULTILINE)) for block in blocks)
    return tuple(unit for unit in units if unit)


def is_masked(unit: Mapping[str, str]) -> bool:
    """Return whether the unit is masked, so that it cannot be started."""
    return unit.get("LoadState") == "masked" or unit.get("UnitFileState") == "masked"


def logind_settings(*files: str) -> dict[str, str]:
    """Return the settings of logind.conf and of its drop-in files. If two files set the same name,
    the later file wins."""
    settings: dict[str, str] = {}
    for text in files:
        settings.update(re.findall(r"^\s*([A-Za-z]+)\s*=\s*(\S+)\s*$", text, re.MULTILINE))
    return settings
