"""Talks to the disk: holds the files of one model against what they are to be, or reads them all.

A model that shoal fetched has the hash of each file noted; in a Hugging Face cache the names of the
blobs are the hashes. What a person put there has none: every byte is read, and the headers of its
weights have to be whole, which finds a failing disk and a cut file, and no flipped bit.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bus.wire.messages.weights import WrongFile
from worker.models.file_hashes import Interrupted, Stopped, held_files, opened
from worker.models.files import header_of, origin_of
from worker.models.passed_over import UnfitModel, printable

if TYPE_CHECKING:
    from hashlib import _Hash  # pyright: ignore[reportPrivateUsage]

READ_BYTES = 4 << 20
MOST_WRONG = 20
"""Files that a verdict names; what is wrong with more is counted."""
Against = Literal["hashes", "headers"]
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of holding a model against its hashes, or of reading it. `unlisted` are files that
    have none, and were only read."""

    against: Against
    files: int
    wrong: tuple[WrongFile, ...] = ()
    wrong_count: int = 0
    unlisted: int = 0


def expected_of(folder: Path) -> dict[str, str]:
    """Return the hash that each file of a model's folder is to have, as far as that is known:
    SHA-256, or Git's SHA-1 of a blob, in hexadecimal."""
    noted = {path: said for path, said in origin_of(folder).files.items() if _HASH.fullmatch(said)}
    if noted or folder.parent.name != "snapshots":
        return noted
    blobs = folder.resolve().parent.parent / "blobs"
    return {
        held.path: held.real.name
        for held in held_files(folder)
        if held.real.parent == blobs and _HASH.fullmatch(held.real.name)
    }


def total_bytes(folder: Path) -> int:
    """Return how many bytes are to be read. Raises OSError."""
    return sum(held.size_bytes for held in held_files(folder))


def verify(folder: Path, progress: Callable[[int], None], stopped: Stopped) -> Verdict:
    """Read the files of the model in a folder, and say what is wrong with them. `progress` is told
    of bytes as they are read. Raises OSError where the folder cannot be listed, Interrupted."""
    expected, held = expected_of(folder), held_files(folder)
    here = {one.path: one.real for one in held}
    wrong = [
        WrongFile(path=printable(path), what="it is not there")
        for path in sorted(expected.keys() - here.keys())
    ]
    for path, real in here.items():
        said = _checked(real, expected.get(path, ""), progress, stopped)
        if said:
            wrong.append(WrongFile(path=printable(path), what=printable(said)))
    return Verdict(
        against="hashes" if expected else "headers",
        files=len(here.keys() | expected.keys()),
        wrong=tuple(wrong[:MOST_WRONG]),
        wrong_count=len(wrong),
        unlisted=len(here.keys() - expected.keys()) if expected else 0,
    )


def _checked(real: Path, expected: str, progress: Callable[[int], None], stopped: Stopped) -> str:
    """Return what is wrong with a file; empty for nothing."""
    try:
        size = real.stat().st_size
        found = _hash_for(expected, size)
        read = 0
        for content in _contents(real, stopped):
            found.update(content)
            read += len(content)
            progress(len(content))
        if expected and found.hexdigest() != expected:
            return f"its hash is {found.hexdigest()[:16]}..., and has to be {expected[:16]}..."
        if read != size:
            return f"it ended after {read:,} of {size:,} bytes"
        if not expected and real.name.endswith(".safetensors"):
            header_of(real)
    except FileNotFoundError:
        return "it went away while it was looked at"
    except OSError as error:
        return f"it cannot be read: {error.strerror or type(error).__name__}"
    except UnfitModel as error:
        return error.unfit.why
    return ""


def _hash_for(expected: str, size_bytes: int) -> _Hash:
    """Return what computes a hash of the kind that is expected."""
    if len(expected) == 40:
        return hashlib.sha1(f"blob {size_bytes}\0".encode(), usedforsecurity=False)
    return hashlib.sha256()


def _contents(real: Path, stopped: Stopped) -> Iterator[bytes]:
    with opened(real, os.O_RDONLY) as file:
        if hasattr(os, "posix_fadvise"):
            # what the system still has in memory says nothing of the disk
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        offset = 0
        while content := os.pread(file, READ_BYTES, offset):
            if stopped():
                raise Interrupted
            yield content
            offset += len(content)
