"""Talks to the disk: preserves the counts of a node's HTTP processes when its gateway restarts.

Each HTTP process of the last gateway left one file for each kind of counter. Before new HTTP
processes start, this module sums these files into one file per kind. So no counter restarts at
zero, or is missing until it counts its first request. Counts of another version of shoal can have
another meaning, so they are deleted.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# (prometheus_client is not typed throughout)
from __future__ import annotations

import os
import shutil
import struct
from collections import defaultdict
from pathlib import Path

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

VERSION_FILE = "version"
_KINDS = ("counter", "histogram")


def go_on(folder: Path, version: str) -> None:
    """Make `folder` the place where this process and its forks store their counts, and sum up the
    counts that earlier processes left there. The folder is created if it is missing. Unreadable
    files are deleted."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    # the library chose its class at import, perhaps before the folder was set
    values.ValueClass = values.get_value_class()
    counted = _counted(folder, version)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    (folder / VERSION_FILE).write_text(version)
    for kind, sums in counted.items():
        # the library's own files have process ids here, so this name cannot clash
        file = MmapedDict(str(folder / f"{kind}_earlier.db"))
        for key, value in sums.items():
            file.write_value(key, value, 0.0)
        file.close()


def _counted(folder: Path, version: str) -> dict[str, dict[str, float]]:
    counted: dict[str, dict[str, float]] = {}
    try:
        if (folder / VERSION_FILE).read_text() != version:
            return counted
    except (OSError, ValueError):
        return counted
    for kind in _KINDS:
        sums: defaultdict[str, float] = defaultdict(float)
        for file in folder.glob(f"{kind}_*.db"):
            try:
                rows = list(MmapedDict.read_all_values_from_file(str(file)))
            except (OSError, ValueError, RuntimeError, struct.error):
                continue  # its process was killed while it created the file
            for key, value, *_ in rows:
                sums[key] += value
        if sums:
            counted[kind] = sums
    return counted
