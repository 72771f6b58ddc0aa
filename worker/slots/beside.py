"""Talks to the disk for the slots, in a thread of its own: how long loads took, and what runners
that were killed have left of models that they made.

What is not whole lies below `.quantizing` in the folder of all models, each in a folder that is
locked while the process lives that fills it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from bus.process.logs import Log
from bus.wire.ids import ModelId
from bus.wire.messages.weights import UNFINISHED

MOST_TIMES = 1000


class SlotNotes:
    """What outlives runners. `load_s` are the seconds that the last load of each model took on this
    node; they are kept in `file`. `models` is the folder of all models."""

    def __init__(self, file: Path, models: Path, log: Log) -> None:
        self.load_s: dict[ModelId, float] = load_times(file)
        self._file = file
        self._models = models
        self._log = log
        self._thread = ThreadPoolExecutor(1, "slot-notes")
        self._is_closed = False

    def loaded(self, model: ModelId, seconds: float) -> None:
        """Note how long a load took."""
        self.load_s.pop(model, None)
        self.load_s[model] = round(seconds, 2)
        while len(self.load_s) > MOST_TIMES:
            self.load_s.pop(next(iter(self.load_s)))
        if not self._is_closed:
            self._thread.submit(self._keep, dict(self.load_s))

    def sweep(self) -> None:
        """Remove what no process fills any more."""
        if not self._is_closed:
            self._thread.submit(self._sweep)

    def close(self) -> None:
        """Let what was begun end; nothing more is begun, though a timer may still look at slots."""
        self._is_closed = True
        self._thread.shutdown()

    def _keep(self, seconds: Mapping[ModelId, float]) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(seconds))
            new.replace(self._file)
        except OSError as error:
            self._log.warning("how long loads take is not kept", error=str(error))

    def _sweep(self) -> None:
        for name in sweep_unfinished(self._models):
            self._log.warning("removed what was left of a model that was being made", name=name)


def load_times(file: Path) -> dict[ModelId, float]:
    """Return the seconds by model that a file holds; none where it cannot be read."""
    try:
        said: Any = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    entries = cast(dict[str, Any], said).items()
    return {ModelId(k): float(s) for k, s in entries if isinstance(s, int | float) and s >= 0}


def sweep_unfinished(models: Path) -> list[str]:
    """Remove the folders of models that no process makes any more; return their names."""
    found: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted((models / UNFINISHED).iterdir()):
            with contextlib.suppress(OSError):
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
                    found.append(folder.name)
                finally:
                    os.close(lock)
    return found
