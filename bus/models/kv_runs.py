"""Runs of tokens whose KV is on a disk: what a scheduler and the files' threads tell each other.

Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class DiskRun:
    """A prefix on disk: the KV of a run of tokens from the beginning of a text. Prefixes are shared
    only within one `seed` (API key and adapter). `name` identifies seed and tokens; `size_bytes`
    is the size of the file, 0 before it is written."""

    name: str
    seed: bytes
    tokens: array[int]
    adapter: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DiskOrder:
    """Work for the threads of the files. `read`: read the run of this name. `forget`: drop its
    arrays. `delete`: delete its file. `look`: find the files of other runners (no name)."""

    what: Literal["read", "forget", "delete", "look"]
    name: str = ""


@dataclass(frozen=True, slots=True)
class DiskReport:
    """A report by the threads of the files about a run. `found`: it is on the disk. `unsaved`: it
    was not written. `read`: it was read into memory within `seconds`. `lost`: it has no valid
    file."""

    what: Literal["found", "written", "unsaved", "read", "lost"]
    run: DiskRun
    seconds: float = 0.0


class PrefixDisk(Protocol):
    """The prefixes on disk, in files that threads of their own read and write. They call
    `wake` when there is a report, and `say` with what an operator should know. Runs have at least
    `least_tokens`."""

    least_tokens: int
    wake: Callable[[], None]
    say: Callable[[str], None]

    def submit(self, orders: Sequence[DiskOrder]) -> None:
        """Pass orders to the threads; returns at once."""
        ...

    def reports(self) -> list[DiskReport]:
        """Return the new reports, in order; returns at once."""
        ...
