"""Talks to the disk for the slots, in a thread of its own: stores load times, and deletes partial
models of killed quantising runners.

Unfinished models are below `.quantizing` in the models folder, each in a folder locked by the
process that writes it.
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
    """Data that outlives runners. `load_s` are the seconds of each model's last load on this node,
    stored in `file`. `models` is the models folder."""

    def __init__(self, file: Path, models: Path, log: Log) -> None:
        self.load_s: dict[ModelId, float] = load_times(file)
        self._file = file
        self._models = models
        self._log = log
        self._thread = ThreadPoolExecutor(1, "slot-notes")
        self._is_closed = False

    def loaded(self, model: ModelId, seconds: float) -> None:
        self.load_s.pop(model, None)
        self.load_s[model] = round(seconds, 2)
        while len(self.load_s) > MOST_TIMES:
            self.load_s.pop(next(iter(self.load_s)))
        if not self._is_closed:
            self._thread.submit(self._keep, dict(self.load_s))

    def sweep(self) -> None:
        """Delete the folders of unfinished models that no process is writing any more."""
        if not self._is_closed:
            self._thread.submit(self._sweep)

    def close(self) -> None:
        """Finish the queued work and start no more; a timer may still call `sweep`, without
        effect."""
        self._is_closed = True
        self._thread.shutdown()

    def _keep(self, seconds: Mapping[ModelId, float]) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(seconds))
            new.replace(self._file)
        except OSError as error:
            self._log.warning("cannot save how long loads take", error=str(error))

    def _sweep(self) -> None:
        for name in sweep_unfinished(self._models):
            self._log.warning("removed the partial files of an unfinished quantisation", name=name)


def load_times(file: Path) -> dict[ModelId, float]:
    """Return the stored load times, in seconds by model; empty if the file cannot be read."""
    try:
        content: Any = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    entries = cast(dict[str, Any], content).items()
    return {ModelId(k): float(s) for k, s in entries if isinstance(s, int | float) and s >= 0}


def sweep_unfinished(models: Path) -> list[str]:
    """Delete the folders of unfinished models that no process writes; return their names."""
    removed: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted((models / UNFINISHED).iterdir()):
            with contextlib.suppress(OSError):
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
                    removed.append(folder.name)
                finally:
                    os.close(lock)
    return removed
