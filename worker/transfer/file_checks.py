"""What a download waits for from its disk: room, and each whole file found right.

Pure: time arrives as `now`. Each piece of work has a deadline, and the refusal says which work was
too slow. A file that is hashed and found spoilt too often is the disk's fault.
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
"""A file that so often is not on the disk as it was written: the disk is at fault."""


@dataclass(frozen=True, slots=True)
class CheckFile:
    """Hash a file as it lies in the stage, whole or its `wanted` pieces; answer with `checked`."""

    digest: str
    path: str
    wanted: bytes | None = None


class FileChecks:
    """The stage of one download: `unchecked` are the files that are not yet found right in it, and
    `margin_bytes` of its disk are to stay free."""

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
        """Give the disk a minute for this work."""
        self._until, self._what = now + STAGE_S, what

    def begin(self, manifest: Manifest, staged: Staged, now: float) -> None:
        """Take in what the stage of this manifest holds; nothing is waited for."""
        self._digest = manifest.digest
        self._sizes = {entry.path: entry.size_bytes for entry in manifest.files}
        self.unchecked = set(self._sizes)
        self._free_bytes = staged.free_bytes
        self._until, self._what = now, ""

    def late(self, now: float) -> Refusal | None:
        """Return that the disk took too long for its work, if it did."""
        if now < self._until:
            return None
        text = f"{self._model}: the disk took too long for {self._what}"
        return Refusal(reason="weights_unavailable", message=text)

    def refuse_room(self, missing: int) -> Refusal | None:
        """Return why the disk cannot take what is `missing`, in bytes; None where it can."""
        free, margin = self._free_bytes, self._margin_bytes
        if missing <= free - margin:
            return None
        return Refusal(
            reason="disk_full",
            message=(
                f"{self._model} lacks {missing / 1e9:.2f} GB, but "
                f"{max(free, 0) / 1e9:.2f} GB are free on the disk, of which "
                f"{margin / 1e9:.2f} GB are to stay so"
            ),
            facts={"missing_bytes": missing, "free_bytes": free, "margin_bytes": margin},
        )

    def check(self, path: str, wanted: bytes | None, now: float) -> CheckFile:
        """Have a file hashed; its time begins when what is hashed before it has had its own."""
        self._until = max(now, self._until) + STAGE_S + self._sizes[path] / CHECK_BYTES_PER_S
        self._what = "hashing what was fetched"
        return CheckFile(self._digest, path, wanted)

    def found(self, path: str, bad: tuple[int, ...]) -> Refusal | None:
        """Note how a file was found; return why the disk is at fault, if it is."""
        if not bad:
            self.unchecked.discard(path)
            return None
        self._spoilt[path] = self._spoilt.get(path, 0) + 1
        if self._spoilt[path] < MAX_SPOILT:
            return None
        text = f"{self._model}: the disk does not keep what is written to {path}"
        return Refusal(reason="weights_unavailable", message=text)


def broken_disk(model: ModelId, error: Exception) -> Refusal:
    """Return that the disk said no."""
    text = f"{model} could not be kept on the disk: {type(error).__name__}: {error}"
    return Refusal(reason="weights_unavailable", message=text)
