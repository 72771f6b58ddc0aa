"""Talks to the disk for the slots, in a thread of its own. It stores how long models took to load
and how fast they decode. It deletes the partial models that killed quantising runners left.

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

MOST_FIGURES = 1000
SPEED_S = 30.0
"""Seconds between two measurements of a model's speed that count."""
WEIGHT = 0.3
"""The weight of the newest measurement in the average speed."""
SPEEDS_FILE = "tokens_per_s.json"


class SlotNotes:
    """Data that outlives runners, by model, each kind in a file. `load_s`: the seconds of the last
    load on this node, in `file`. `tokens_per_s`: the speed of one row, in `SPEEDS_FILE` beside it.
    `models` is the models folder."""

    def __init__(self, file: Path, models: Path, log: Log) -> None:
        self._load_file, self._speed_file = file, file.with_name(SPEEDS_FILE)
        self.load_s: dict[ModelId, float] = stored_figures(self._load_file)
        self.tokens_per_s: dict[ModelId, float] = stored_figures(self._speed_file)
        self._noted_at: dict[ModelId, float] = {}
        self._models = models
        self._log = log
        self._thread = ThreadPoolExecutor(1, "slot-notes")
        self._is_closed = False

    def loaded(self, model: ModelId, seconds: float) -> None:
        """Store the duration of a load."""
        self._note(self.load_s, model, round(seconds, 2), self._load_file)

    def decoded(self, model: ModelId, tokens_per_s: float, now: float) -> None:
        """Average a measured speed with the earlier ones, at most once in `SPEED_S` for each
        model."""
        if now - self._noted_at.get(model, -SPEED_S) < SPEED_S:
            return
        self._noted_at[model] = now
        before = self.tokens_per_s.get(model, tokens_per_s)
        average = float(f"{before + WEIGHT * (tokens_per_s - before):.2g}")
        if average != self.tokens_per_s.get(model):
            self._note(self.tokens_per_s, model, average, self._speed_file)

    def sweep(self) -> None:
        """Delete the folders of unfinished models that no process is writing any more."""
        if not self._is_closed:
            self._thread.submit(self._sweep)

    def close(self) -> None:
        """Finish the queued work and start no more; a timer may still call `sweep`, without
        effect."""
        self._is_closed = True
        self._thread.shutdown()

    def _note(
        self, figures: dict[ModelId, float], model: ModelId, figure: float, file: Path
    ) -> None:
        figures.pop(model, None)
        figures[model] = figure
        while len(figures) > MOST_FIGURES:
            figures.pop(next(iter(figures)))
        if not self._is_closed:
            self._thread.submit(self._write, file, dict(figures))

    def _write(self, file: Path, figures: Mapping[ModelId, float]) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            new = file.with_suffix(".new")
            new.write_text(json.dumps(figures))
            new.replace(file)
        except OSError as error:
            self._log.warning("cannot save the measured figures of models", error=str(error))

    def _sweep(self) -> None:
        for name in sweep_unfinished(self._models):
            self._log.warning("removed the partial files of an unfinished quantisation", name=name)


def stored_figures(file: Path) -> dict[ModelId, float]:
    """Return the stored seconds or speeds by model; empty if the file cannot be read."""
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
