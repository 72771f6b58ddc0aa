"""Talks to the disk: the files in which runners keep the KV of long prompts (decision 0099).

The folder `kv` of a node has a folder for each model. Each of these has a folder for each key, and
there a file for each run of tokens. The key is a hash of everything except the tokens that the KV
depends on. Every process of the node may read, write and delete files at any time. A file is
complete when it gets its name, and readers treat a missing file as a miss. A file's modification
time is the time of its last use.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

SUFFIX = ".safetensors"
UNFINISHED = ".part"
UNFINISHED_S = 600.0
"""An unfinished file that was not written to for this time is deleted: its writer has died."""
MOST_FILES = 4096
"""Limit of files in the folder, so that listing it stays cheap."""


@dataclass(frozen=True, slots=True)
class KvLimits:
    """Limits of the folder `root`: its bytes (0: nothing is kept), the seconds after which an
    unused file is deleted, and the fewest tokens of a run."""

    root: Path
    most_bytes: int
    least_tokens: int
    unused_s: float


@dataclass(frozen=True, slots=True)
class KvFile:
    """One file: its model, the number of tokens in it, its size, and when it was last used
    (seconds of the wall clock). `tokens` is 0 for an unfinished file."""

    model: str
    path: Path
    tokens: int
    size_bytes: int
    used_at_s: float

    @property
    def unfinished(self) -> bool:
        return self.path.name.endswith(UNFINISHED)


def kv_root(state: Path) -> Path:
    """Return the folder of all files, in the state folder of a node."""
    return state / "kv"


def model_folder(root: Path, model: str) -> Path:
    """Return the folder of a model's files. Model ids may contain slashes, folder names may not."""
    return root / quote(model, safe="")


def make_private(folder: Path, root: Path) -> None:
    """Make `folder`, which is below `root`, and all folders between; only the user may open them.
    Raises OSError."""
    for place in (*reversed(folder.parents), folder):
        if place == root or place.is_relative_to(root):
            place.mkdir(mode=0o700, exist_ok=True)


def kv_files(root: Path, model: str | None = None) -> list[KvFile]:
    """Return all files, or those of one model. Files that vanish meanwhile are left out."""
    folders = _entries(root) if model is None else [model_folder(root, model)]
    files: list[KvFile] = []
    for folder in folders:
        for key in _entries(folder):
            for path in _entries(key):
                with contextlib.suppress(OSError):
                    seen = path.stat()
                    tokens = _tokens_of(path.name)
                    name = unquote(folder.name)
                    files.append(KvFile(name, path, tokens, seen.st_size, seen.st_mtime))
    return files


def purge(root: Path, model: str | None = None) -> tuple[int, int]:
    """Delete all files, or those of one model; return their number and bytes. Raises OSError if a
    file cannot be deleted."""
    files = kv_files(root, model)
    for file in files:
        file.path.unlink(missing_ok=True)
    _drop_empty(root)
    return len(files), sum(file.size_bytes for file in files)


def evict(limits: KvLimits, *, room_bytes: int = 0, now_s: float | None = None) -> list[KvFile]:
    """Delete files that were not used for too long, and the least recently used ones until
    `room_bytes` more fit; return them. Files that cannot be deleted are left out."""
    now_s = time.time() if now_s is None else now_s
    files = sorted(kv_files(limits.root), key=lambda file: file.used_at_s, reverse=True)
    left_bytes, left_files = limits.most_bytes - room_bytes, MOST_FILES
    deleted: list[KvFile] = []
    for file in files:
        limit_s = UNFINISHED_S if file.unfinished else limits.unused_s
        stays = now_s - file.used_at_s <= limit_s and left_files > 0
        if stays and (file.size_bytes <= left_bytes or file.unfinished):
            left_bytes -= file.size_bytes
            left_files -= 1
            continue
        with contextlib.suppress(OSError):
            file.path.unlink()
            deleted.append(file)
    if deleted:
        _drop_empty(limits.root)
    return deleted


def delete_gone(root: Path, models: Sequence[str]) -> int:
    """Delete the files of models that are not among `models`; return their number. Files that
    cannot be deleted are left out."""
    stay, deleted = set(models), 0
    for file in kv_files(root):
        if file.model not in stay:
            with contextlib.suppress(OSError):
                file.path.unlink()
                deleted += 1
    _drop_empty(root)
    return deleted


def _entries(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        yield from [Path(entry.path) for entry in entries]


def _tokens_of(name: str) -> int:
    tokens = name.removesuffix(SUFFIX).rpartition("-")[2]
    return int(tokens) if name.endswith(SUFFIX) and tokens.isdecimal() else 0


def _drop_empty(root: Path) -> None:
    """Delete folders without files. A folder in which a file was just made stays."""
    for folder in _entries(root):
        for place in (*_entries(folder), folder):
            with contextlib.suppress(OSError):
                place.rmdir()
