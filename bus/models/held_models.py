"""Models in use: loaded, being read or written, or being downloaded. Their files must not be
deleted.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bus.wire.errors import ShoalError
from bus.wire.instances import Instance
from bus.wire.messages.readings import PullReading, WeightsReading


class FolderKept(ShoalError):
    """Raised for a folder that must not be deleted, with the reason and a remedy."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    @property
    def words(self) -> str:
        """Return the reason and the remedy on one line."""
        return f"{self.message}; {self.remedy}"


def why_held(
    model: str,
    instances: Iterable[Instance],
    weights: Iterable[WeightsReading],
    pulls: Iterable[PullReading],
    names: Mapping[str, str],
) -> FolderKept | None:
    """Return why a model must not be deleted now; None if it may be. Reasons: an instance uses it,
    an instance reads its files or makes it (quantization), or readings show a download of it.
    `names` maps node ids to names."""
    named = (instance for instance in instances if model in (instance.model, instance.reads))
    loaded = [instance for instance in named if instance.status != "failed"]
    if loaded:
        copies = ", ".join(f"{instance.instance}, {instance.status}" for instance in loaded)
        text = f"{model} is loaded or loading ({copies})"
        return FolderKept(text, remedy=f"`shoal stop {model}` unloads it")
    moving = [
        *((reading.node, work) for reading in weights for work in reading.fetches),
        *((reading.node, work) for reading in pulls for work in reading.pulls),
    ]
    for node, work in moving:
        if work.model == model and work.phase not in ("done", "failed"):
            text = f"{names.get(node, node)} is downloading {model}"
            remedy = f"wait for the pull, or cancel it with `shoal pulls cancel {model}`"
            return FolderKept(text, remedy=remedy)
    return None
