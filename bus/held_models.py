"""Models in use: loaded, worked on, or being downloaded; their files must not be deleted.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bus.wire.errors import ShoalError
from bus.wire.instances import Instance
from bus.wire.messages.readings import PullReading, WeightsReading


class FolderKept(ShoalError):
    """A folder that must not be deleted: why, and what to do."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    @property
    def words(self) -> str:
        """Return reason and remedy in one line."""
        return f"{self.message}; {self.remedy}"


def why_held(
    model: str,
    instances: Iterable[Instance],
    weights: Iterable[WeightsReading],
    pulls: Iterable[PullReading],
    names: Mapping[str, str],
) -> FolderKept | None:
    """Return why a model must not be deleted now: its instances, work that reads or makes it, or
    a download that readings report. None if it may be. `names`: node names by id."""
    named = (one for one in instances if model in (one.model, one.reads))
    held = [one for one in named if one.status != "failed"]
    if held:
        copies = ", ".join(f"{one.instance}, {one.status}" for one in held)
        text = f"{model} is loaded or loading ({copies})"
        return FolderKept(text, remedy=f"`shoal stop {model}` unloads it")
    moving = [
        *((reading.node, one) for reading in weights for one in reading.fetches),
        *((reading.node, one) for reading in pulls for one in reading.pulls),
    ]
    for node, one in moving:
        if one.model == model and one.phase not in ("done", "failed"):
            text = f"{names.get(node, node)} is downloading {model}"
            return FolderKept(text, remedy="wait for the download, or cancel it first")
    return None
