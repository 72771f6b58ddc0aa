"""Runs of tokens whose KV is on a disk: the messages between a scheduler and the threads that read
and write the files.

Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class KvKey:
    """The things besides the tokens that KV depends on. `how`: a hash of the way of computing,
    equal on all nodes that compute in the same way. `folder`: a hash of `how` and of the model's
    files on this disk; it names the folder with the runs."""

    folder: str
    how: str


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


@dataclass(frozen=True, slots=True)
class RunQuestion:
    """The question whether another node has KV of the beginning of a prompt. `name` identifies the
    whole prompt, which has `tokens` tokens; this runner already has KV of the first `have`.
    `hashes`: the short hashes of the prompt's blocks (`short_hashes`). `saves_s`: the expected
    seconds of computing from `have` to the end of each of several equal steps; the last step ends
    with the prompt. `read_bytes_per_s`: the speed of this runner's disk."""

    name: str
    adapter: str
    tokens: int
    have: int
    hashes: bytes
    saves_s: tuple[float, ...]
    read_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class RunNews:
    """An answer to the question about the prompt `name`. `coming`: a run is copied, and the row may
    wait for `wait_s` from now. `moved`: a run of `size_bytes` is on this node's disk. `none`: no
    node has one. `dearer`: computing is expected to be faster. `failed`: the copy failed."""

    name: str
    what: Literal["coming", "moved", "none", "dearer", "failed"]
    wait_s: float = 0.0
    size_bytes: int = 0


class PrefixDisk(Protocol):
    """The prefixes on disk. Separate threads read and write the files. They call `wake` when there
    is a report, and `say` with a text for the operator. Runs have at least `least_tokens` tokens.
    `keys`: the key for each adapter. `moves`: runs may be copied from other nodes."""

    least_tokens: int
    keys: dict[str, KvKey]
    moves: bool
    wake: Callable[[], None]
    say: Callable[[str], None]

    def submit(self, orders: Sequence[DiskOrder]) -> None:
        """Pass orders to the threads; returns at once."""
        ...

    def reports(self) -> list[DiskReport]:
        """Return the new reports, in order; returns at once."""
        ...
