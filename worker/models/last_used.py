"""Talks to the disk: when each model was used last on this node, over restarts.

Seconds since 1970, down to the minute, so that what is announced seldom changes. Beyond
`MOST_MODELS` those used longest ago are forgotten: not by their age, for a clock that jumps ahead
would make all others old.
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
    """What `file` has of it. `keep` may be called from one other thread than `read`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._written: dict[ModelId, int] = {}

    def read(self) -> dict[ModelId, int]:
        """Return when models were used, as it was kept."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            said = json_object(self._file)
            self._written = {ModelId(m): at for m, at in said.items() if type(at) is int}
        return dict(self._written)

    def keep(self, used: Mapping[ModelId, int]) -> None:
        """Write it, where it has changed. A disk that fails keeps nothing."""
        latest = sorted(used, key=lambda model: used[model])[-MOST_MODELS:]
        wanted = {model: used[model] for model in latest}
        if wanted != self._written:
            with contextlib.suppress(OSError):
                fresh = self._file.with_suffix(".new")
                fresh.write_text(json.dumps(wanted))
                fresh.replace(self._file)
                self._written = wanted


def minute_of(at_s: float) -> int:
    """Return the minute of a moment, in seconds."""
    return int(at_s) // STEP_S * STEP_S
