"""Talks to the disk: when each model was last used on this node, over restarts. The same kind of
file has the memory of the programs of `engines.toml`, in bytes.

Times are seconds since 1970, rounded down to minutes, so that the node's announcements seldom
change. If there are more than `MOST_MODELS` models, the least recently used are dropped. They are
dropped by order of use and not by age, because a clock that jumps ahead would make all other models
old.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from bus.wire.ids import ModelId
from worker.models.files import json_object

STEP_S = 60
MOST_MODELS = 1_000


class LastUsed:
    """The times of last use, stored in `file`. `keep` and `read` may be called from different
    threads."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._written: dict[ModelId, int] = {}

    def read(self) -> dict[ModelId, int]:
        """Return the stored time of each model's last use, in seconds since 1970."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            content = json_object(self._file)
            self._written = {ModelId(m): at for m, at in content.items() if type(at) is int}
        return dict(self._written)

    def keep(self, used: Mapping[ModelId, int]) -> None:
        """Write the times of last use to the disk if they have changed. Errors of the disk are
        ignored."""
        latest = sorted(used, key=lambda model: used[model])[-MOST_MODELS:]
        wanted = {model: used[model] for model in latest}
        if wanted != self._written:
            with contextlib.suppress(OSError):
                fresh = self._file.with_suffix(".new")
                fresh.write_text(json.dumps(wanted))
                fresh.replace(self._file)
                self._written = wanted


def minute_of(at_s: float) -> int:
    """Return the beginning of the minute that contains `at_s`, in seconds since 1970."""
    return int(at_s) // STEP_S * STEP_S
