"""Talks to the disk: stores a few compressed segments of the log that the journal has dropped.

The archives are for people: shoal never reads them back (`zstd -d` and msgpack do). A segment gets
a second link before its file is replaced, and a separate thread compresses it; the next start
resumes after a crash. A failure costs the archive and never the journal. No other module imports
zstandard.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import zstandard

from bus.process.logs import Log

KEPT_FILES = 5
KEPT_BYTES = 1 << 30
LEVEL = 6


class Archives:
    """The folder of old segments: at most `KEPT_FILES` files, at most `kept_bytes` in all."""

    def __init__(self, folder: Path, log: Log, *, kept_bytes: int = KEPT_BYTES) -> None:
        self.folder = folder
        self._log = log
        self._kept_bytes = kept_bytes
        self._thread: threading.Thread | None = None

    def resume(self) -> None:
        """Compress the segments that a crash left uncompressed."""
        left = sorted(self.folder.glob("*.log"))
        if left:
            self._compress_soon(left)

    def take(self, path: Path, name: str) -> None:
        """Keep the file at `path` as the segment `name`. On return the caller may replace that
        file."""
        self.finish()
        segment = self.folder / f"{name}.log"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            segment.unlink(missing_ok=True)
            os.link(path, segment)
        except OSError as error:
            self._log.warning("cannot archive the journal", segment=name, error=str(error))
            return
        self._compress_soon([segment])

    def finish(self) -> None:
        """Wait for the compression to end."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _compress_soon(self, segments: Sequence[Path]) -> None:
        self._thread = threading.Thread(
            target=self._compress, args=(segments,), name="archive", daemon=True
        )
        self._thread.start()

    def _compress(self, segments: Sequence[Path]) -> None:
        for segment in segments:
            fresh = segment.with_suffix(".new")
            try:
                with open(segment, "rb") as source, open(fresh, "wb") as target:
                    zstandard.ZstdCompressor(level=LEVEL).copy_stream(source, target)
                os.replace(fresh, segment.with_suffix(".log.zst"))
            except OSError as error:
                fresh.unlink(missing_ok=True)
                self._log.warning(
                    "cannot archive the journal", segment=segment.name, error=str(error)
                )
            segment.unlink(missing_ok=True)
        self._prune()

    def _prune(self) -> None:
        """Remove archives beyond the limits, oldest first. The order of their names is that of the
        log."""
        archives = sorted(self.folder.glob("*.log.zst"))
        total = sum(path.stat().st_size for path in archives)
        while archives and (len(archives) > KEPT_FILES or total > self._kept_bytes):
            oldest = archives.pop(0)
            total -= oldest.stat().st_size
            oldest.unlink(missing_ok=True)
