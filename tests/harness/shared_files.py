"""Which test files share a cluster, and so run one after the other in one process."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

CLUSTERS = ("pair", "three")
SHARED = re.compile(r"\bshared_(pair|three)\b")


@cache
def cluster_that(path: Path) -> str:
    """The shared cluster that a test file names: `pair`, `three`, or none."""
    found = SHARED.search(path.read_text())
    return found[1] if found else ""


class FilesThatShare(LoadFileScheduling):
    """As `--dist loadfile`, but all files that share a cluster go to one process."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return cluster_that(self.config.rootpath / file) or file
