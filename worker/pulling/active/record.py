"""Talks to the disk in a thread of its own: the record of this node's background pulls.

The file has each background pull of this node. A restarted worker resumes the running pulls; failed
and paused pulls wait for a user. The file is replaced as a whole and carries a checksum. A damaged
file is kept as `FILE.damaged`, and its pulls are not resumed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from bus.process.identity import Damaged, sealed, unsealed
from bus.process.logs import Log
from bus.wire.ids import ModelId, is_model_id
from bus.wire.messages.readings import PullRefusal
from bus.wire.messages.wire import Message
from worker.models.files import sync_folder

MOST_RECORDED = 64
"""The oldest failed pulls beyond this number are dropped."""
RETRY_S = 5.0
"""A failed write is repeated after this long."""


class RecordedPull(Message):
    """A background pull, of only some `layers` [first, last) if these are given. `reason` and
    `message` say why it does not run now; None: it runs."""

    model: Annotated[ModelId, Field(max_length=400)]
    revision: str = Field(default="", max_length=200)
    layers: tuple[int, int] | None = None
    reason: PullRefusal | None = None
    message: str = ""


_PULLS = TypeAdapter(tuple[RecordedPull, ...])
Recorded = tuple[RecordedPull, ...]


class PullRecord:
    """The record in `file`. `on_disk` is the content of the file."""

    def __init__(self, file: Path, log: Log) -> None:
        self._file = file
        self._log = log
        self._thread = ThreadPoolExecutor(1, "pull-record")
        self._writing: tuple[Recorded, Future[None]] | None = None
        self._retry_at = 0.0
        self.on_disk: Recorded = self._read()
        self._wanted = self.on_disk

    @property
    def is_current(self) -> bool:
        """Return whether the file has the pulls that `keep` last got."""
        return self._writing is None and self._wanted == self.on_disk

    def has(self, model: ModelId) -> bool:
        """Return whether the file records a running pull of this model."""
        return any(pull.model == model and pull.reason is None for pull in self.on_disk)

    def keep(self, pulls: Sequence[RecordedPull], now: float) -> None:
        """Start to write the pulls, unless the disk has them or a write is running. Must be called
        often."""
        self._wanted = _newest(pulls)
        if self._writing is not None:
            written, future = self._writing
            if not future.done():
                return
            self._writing = None
            if (error := future.exception()) is None:
                self.on_disk = written
            else:
                self._retry_at = now + RETRY_S
                text = "cannot record the background pulls; they end with this worker"
                self._log.warning(text, file=str(self._file), error=str(error))
        if self._wanted != self.on_disk and now >= self._retry_at:
            self._writing = self._wanted, self._thread.submit(self._write, self._wanted)

    def close(self) -> None:
        """Finish the running write."""
        self._thread.shutdown()

    def _read(self) -> Recorded:
        try:
            pulls = _PULLS.validate_json(unsealed(self._file.read_bytes()))
        except FileNotFoundError:
            return ()
        except (OSError, Damaged, ValidationError) as error:
            self._log.warning(
                "the record of background pulls cannot be used; start the pulls again",
                file=str(self._file),
                error=str(error),
            )
            with contextlib.suppress(OSError):
                self._file.replace(self._file.with_name(f"{self._file.name}.damaged"))
            return ()
        return tuple(pull for pull in pulls if is_model_id(pull.model))

    def _write(self, pulls: Recorded) -> None:
        rows = [pull.model_dump(mode="json", exclude_defaults=True) for pull in pulls]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(".new")
        with open(fresh, "wb") as file:
            file.write(sealed(json.dumps(rows)))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)
        sync_folder(self._file.parent)


def _newest(pulls: Sequence[RecordedPull]) -> Recorded:
    """Return the running pulls and the newest of the others, in their order."""
    ended = [pull for pull in pulls if pull.reason is not None]
    dropped = ended[: max(0, len(pulls) - MOST_RECORDED)]
    return tuple(pull for pull in pulls if pull not in dropped)
