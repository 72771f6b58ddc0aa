"""Which test files share more than the one node, and so run one after the other in one process."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

BROWSER = "tests/browser/"
ALONE_IN_A_PROCESS = ("pair", "empty", "stores", "keyed")
"""Of these a process has one at a time."""
SHARED = re.compile(rf"\bshared_({'|'.join(ALONE_IN_A_PROCESS)})\b")


@cache
def shared_by(path: Path) -> str:
    """What a test file shares by name: `pair`, `empty`, or nothing of these."""
    found = SHARED.search(path.read_text())
    return found[1] if found else ""


class FilesThatShare(LoadFileScheduling):
    """As `--dist loadfile`, but all files that share one of these go to one process, and so do all
    that share a browser."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if file.startswith(BROWSER):
            return BROWSER
        return shared_by(self.config.rootpath / file) or file
