"""Talks to the disk: what a node's HTTP processes had counted before its gateway ended goes on.

A gateway that was killed has left its counts in files, one of each kind for each process. They are
summed into one file of each kind before HTTP processes start, so that no counter begins anew, and
none disappears until the first request of its kind: what Prometheus takes for a counter that stood
still. Counts of another version of shoal may mean something else, and are let go.
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

__all__ = ["go_on"]

VERSION_FILE = "version"
_KINDS = ("counter", "histogram")


def go_on(folder: Path, version: str) -> None:
    """Keep the counts of this process, and of those that it forks, in a folder, and have the counts
    in it go on. The folder is made where it is missing. What cannot be read is let go."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    # the library chose when it was imported, which may have been before the folder was known
    values.ValueClass = values.get_value_class()
    counted = _counted(folder, version)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    (folder / VERSION_FILE).write_text(version)
    for kind, sums in counted.items():
        # processes are called by their numbers there
        file = MmapedDict(str(folder / f"{kind}_earlier.db"))
        for key, value in sums.items():
            file.write_value(key, value, 0.0)
        file.close()


def _counted(folder: Path, version: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    try:
        if (folder / VERSION_FILE).read_text() != version:
            return found
    except (OSError, ValueError):
        return found
    for kind in _KINDS:
        sums: defaultdict[str, float] = defaultdict(float)
        for file in folder.glob(f"{kind}_*.db"):
            try:
                rows = list(MmapedDict.read_all_values_from_file(str(file)))
            except (OSError, ValueError, RuntimeError, struct.error):
                continue  # its process was killed as it made the file
            for key, value, *_ in rows:
                sums[key] += value
        if sums:
            found[kind] = sums
    return found
