"""The disk work that a download must wait for: checking the free space, and verifying whole files.

Pure: time arrives as `now`. Each job has a deadline, and the refusal says which job was too slow.
If a file is corrupt too often after writing, the disk is at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId
from bus.wire.messages.weights import Manifest
from worker.transfer.pieces import Staged

STAGE_S = 60.0
CHECK_BYTES_PER_S = 20e6
MAX_SPOILT = 3
"""If a file differs from its written content this many times, the disk is at fault."""


@dataclass(frozen=True, slots=True)
class CheckFile:
    """Hash a file in the staging folder (the whole file or its `wanted` pieces), then call
    `Download.checked`."""

    digest: str
    path: str
    wanted: bytes | None = None


class FileChecks:
    """The disk work of one download. `unchecked` are the files in its staging folder that are not
    verified yet. `margin_bytes` of the disk are left free."""

    def __init__(self, model: ModelId, margin_bytes: int, now: float) -> None:
        self.unchecked: set[str] = set()
        self._model = model
        self._margin_bytes = margin_bytes
        self._digest = ""
        self._sizes: Mapping[str, int] = {}
        self._free_bytes = 0
        self._spoilt: dict[str, int] = {}
        self._until, self._what = now, ""

    def wait(self, what: str, now: float) -> None:
        """Start the time limit of a disk job, one minute. `what` describes the job."""
        self._until, self._what = now + STAGE_S, what

    def begin(self, manifest: Manifest, staged: Staged, now: float) -> None:
        """Record the contents of the staging folder of this manifest, after the folder was
        opened."""
        self._digest = manifest.digest
        self._sizes = {entry.path: entry.size_bytes for entry in manifest.files}
        self.unchecked = set(self._sizes)
        self._free_bytes = staged.free_bytes
        self._until, self._what = now, ""

    def late(self, now: float) -> Refusal | None:
        """Return a refusal if a job of the disk has exceeded its deadline; otherwise None."""
        if now < self._until:
            return None
        text = f"{self._model}: the disk took too long: {self._what}"
        return Refusal(reason="weights_unavailable", message=text)

    def refuse_room(self, missing: int) -> Refusal | None:
        """Return why the disk cannot take `missing` more bytes; None if it can."""
        free, margin = self._free_bytes, self._margin_bytes
        if missing <= free - margin:
            return None
        return Refusal(
            reason="disk_full",
            message=(
                f"not enough disk space for {self._model}: {missing / 1e9:.2f} GB "
                f"needed, {max(free, 0) / 1e9:.2f} GB free, {margin / 1e9:.2f} GB of "
                "which must stay free"
            ),
            facts={"missing_bytes": missing, "free_bytes": free, "margin_bytes": margin},
        )

    def check(self, path: str, wanted: bytes | None, now: float) -> CheckFile:
        """Return the action that hashes a file. Its time limit begins when the time limits of the
        files before it have ended."""
        self._until = max(now, self._until) + STAGE_S + self._sizes[path] / CHECK_BYTES_PER_S
        self._what = "hashing the fetched files"
        return CheckFile(self._digest, path, wanted)

    def note_result(self, path: str, bad: tuple[int, ...]) -> Refusal | None:
        """Record the result of checking a file: `bad` are its corrupt pieces. Return a refusal if
        the disk is at fault; otherwise None."""
        if not bad:
            self.unchecked.discard(path)
            return None
        self._spoilt[path] = self._spoilt.get(path, 0) + 1
        if self._spoilt[path] < MAX_SPOILT:
            return None
        text = f"{self._model}: the disk does not store data written to {path}"
        return Refusal(reason="weights_unavailable", message=text)


def broken_disk(model: ModelId, error: Exception) -> Refusal:
    text = f"{model} could not be saved: {type(error).__name__}: {error}"
    return Refusal(reason="weights_unavailable", message=text)
