"""Talks to the disk: compares the files of one model with their hashes, or reads them all.

A model that shoal fetched has a recorded hash per file; in a Hugging Face cache the names of the
blobs are the hashes. A model that a person added has none. Then every byte is read and the headers
of its weights are checked. This finds a failing disk and a truncated file, but not a flipped bit.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bus.models.gguf import is_gguf
from bus.wire.messages.weights import WrongFile
from worker.models.file_hashes import Interrupted, Stopped, held_files, opened
from worker.models.files import gguf_facts_of, gguf_header_of, header_of, origin_of
from worker.models.passed_over import UnfitModel, ggufs_among, printable

if TYPE_CHECKING:
    from hashlib import _Hash  # pyright: ignore[reportPrivateUsage]

READ_BYTES = 4 << 20
MOST_WRONG = 20
"""The most wrong files that a result lists; further ones are only counted."""
Against = Literal["hashes", "headers"]
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of comparing a model with its hashes, or of reading it. `unlisted` are files
    without a hash, which were only read."""

    against: Against
    files: int
    wrong: tuple[WrongFile, ...] = ()
    wrong_count: int = 0
    unlisted: int = 0


def expected_of(folder: Path) -> dict[str, str]:
    """Return the known hash of each file of a model's folder: SHA-256, or Git's SHA-1 of a blob, in
    hexadecimal."""
    noted = {
        path: file_hash
        for path, file_hash in origin_of(folder).files.items()
        if _HASH.fullmatch(file_hash)
    }
    if noted or folder.parent.name != "snapshots":
        return noted
    blobs = folder.resolve().parent.parent / "blobs"
    return {
        held.path: held.real.name
        for held in held_files(folder)
        if held.real.parent == blobs and _HASH.fullmatch(held.real.name)
    }


def total_bytes(folder: Path) -> int:
    """Return how many bytes must be read. Raises OSError."""
    return sum(held.size_bytes for held in held_files(folder))


def verify(folder: Path, progress: Callable[[int], None], stopped: Stopped) -> Verdict:
    """Read the files of the model in a folder and return what is wrong with them. `progress` gets
    bytes as they are read. Raises OSError if the folder cannot be listed, Interrupted."""
    expected, held = expected_of(folder), held_files(folder)
    here = {file.path: file.real for file in held}
    wrong = [
        WrongFile(path=printable(path), what="the file is missing")
        for path in sorted(expected.keys() - here.keys())
    ]
    for path, real in here.items():
        what = _checked(real, expected.get(path, ""), progress, stopped)
        if what:
            wrong.append(WrongFile(path=printable(path), what=printable(what)))
    parts = ggufs_among(here)
    if parts and not wrong and not expected.keys() & set(parts):
        wrong += _not_one_model([here[path] for path in parts])
    return Verdict(
        against="hashes" if expected else "headers",
        files=len(here.keys() | expected.keys()),
        wrong=tuple(wrong[:MOST_WRONG]),
        wrong_count=len(wrong),
        unlisted=len(here.keys() - expected.keys()) if expected else 0,
    )


def _checked(real: Path, expected: str, progress: Callable[[int], None], stopped: Stopped) -> str:
    """Return what is wrong with a file's content; empty if its hash is the expected one."""
    try:
        size = real.stat().st_size
        file_hash = _hash_for(expected, size)
        read = 0
        for content in _contents(real, stopped):
            file_hash.update(content)
            read += len(content)
            progress(len(content))
        if expected and file_hash.hexdigest() != expected:
            return f"the hash is {file_hash.hexdigest()[:16]}..., but should be {expected[:16]}..."
        if read != size:
            return f"the file ended after {read:,} of {size:,} bytes"
        if not expected and real.name.endswith(".safetensors"):
            header_of(real)
        elif not expected and is_gguf(real.name):
            gguf_header_of(real)
    except FileNotFoundError:
        return "the file was deleted during the check"
    except OSError as error:
        return f"the file cannot be read: {error.strerror or type(error).__name__}"
    except UnfitModel as error:
        return error.unfit.why
    return ""


def _not_one_model(files: Sequence[Path]) -> Iterator[WrongFile]:
    """Yield what is wrong with a GGUF file, or with all its parts together. For files without
    hashes, whose content cannot be checked otherwise."""
    try:
        gguf_facts_of(files)
    except (OSError, UnfitModel) as error:
        what = error.unfit.why if isinstance(error, UnfitModel) else str(error)
        yield WrongFile(path=printable(files[0].name), what=printable(what))


def _hash_for(expected: str, size_bytes: int) -> _Hash:
    """Return a hash object of the kind of `expected`: Git's SHA-1 of a blob, or SHA-256."""
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
