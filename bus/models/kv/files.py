"""Talks to the disk: the files in which runners keep the KV of long prompts (decision 0099).

The folder `kv` of a node has a folder for each model. Each of these has a folder for each key, and
there a file for each run of tokens. The key is a hash of everything except the tokens that the KV
depends on. Every process of the node may read, write and delete files at any time. A file is
complete when it gets its name, and readers treat a missing file as a miss. A file's modification
time is the time of its last use. The name of a file that came from another node ends with that node
(decision 0106).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from bus.models.kv.runs import KvKey

SUFFIX = ".safetensors"
UNFINISHED = ".part"
ORIGIN_MARK = "@"
HEADER_BYTES = 1 << 20
_RUN_NAME = re.compile(r"[0-9a-f]{32}-[0-9]{1,8}")
_NODE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
UNFINISHED_S = 600.0
"""An unfinished file that was not written to for this time is deleted: its writer has died."""
MOST_FILES = 4096
"""Limit of files in the folder, so that listing it stays cheap."""


@dataclass(frozen=True, slots=True)
class KvLimits:
    """Limits of the folder `root`: its bytes (0: nothing is kept), the seconds after which an
    unused file is deleted, and the fewest tokens of a run. `moves`: files may be copied from other
    nodes, and to them."""

    root: Path
    most_bytes: int
    least_tokens: int
    unused_s: float
    moves: bool = False


@dataclass(frozen=True, slots=True)
class KvFile:
    """One file: its model, the number of tokens in it, its size, and when it was last used
    (seconds of the wall clock). `tokens` is 0 for an unfinished file. `origin`: the node that
    computed it; empty: this node."""

    model: str
    path: Path
    tokens: int
    size_bytes: int
    used_at_s: float
    origin: str = ""

    @property
    def unfinished(self) -> bool:
        return self.path.name.endswith(UNFINISHED)


def kv_root(state: Path) -> Path:
    """Return the folder of all files, in the state folder of a node."""
    return state / "kv"


def model_folder(root: Path, model: str) -> Path:
    """Return the folder of a model's files. Model ids may contain slashes, folder names may not."""
    return root / quote(model, safe="")


def files_mark(path: Path) -> str:
    """Return a mark of the model's files in the folder `path`: it changes with every change of
    their content. Raises OSError.

    The mark includes each file's time of last status change (ctime). A copy may have the size and
    the modification time of the file that it replaces, but not its ctime.
    """
    content = hashlib.blake2b(digest_size=16)
    content.update((path / "config.json").read_bytes())
    for file in sorted(path.glob("*.safetensors")):
        seen = file.stat()
        marks = (file.name, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)
        content.update(repr(marks).encode())
        with file.open("rb") as opened:
            content.update(opened.read(HEADER_BYTES))
    return content.hexdigest()


def kv_key(mark: str, how: str) -> KvKey:
    """Return the key of the KV that the model files with the mark `mark` give if it is computed in
    the way `how`."""
    folder = hashlib.blake2b(f"{mark} {how}".encode(), digest_size=16)
    return KvKey(folder.hexdigest(), how)


def run_path(folder: Path, name: str, origin: str = "") -> Path:
    """Return the path of the file of the run `name` in the folder of its key. `origin`: the other
    node that computed it. Raises ValueError if a name cannot be part of a path."""
    if not _RUN_NAME.fullmatch(name) or (origin and not _NODE_NAME.fullmatch(origin)):
        raise ValueError(f"invalid name of a KV file: run {name[:80]!r} of node {origin[:80]!r}")
    return folder / (f"{name}{ORIGIN_MARK}{origin}{SUFFIX}" if origin else f"{name}{SUFFIX}")


def run_of(file_name: str) -> tuple[str, str] | None:
    """Return the name of the run and its origin (empty: this node) of a file; None if it is no
    complete file of a run."""
    name, _, origin = file_name.removesuffix(SUFFIX).partition(ORIGIN_MARK)
    return (name, origin) if file_name.endswith(SUFFIX) and _RUN_NAME.fullmatch(name) else None


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
                    name, (run, origin) = unquote(folder.name), run_of(path.name) or ("", "")
                    tokens = int(run.rpartition("-")[2] or 0)
                    files.append(KvFile(name, path, tokens, seen.st_size, seen.st_mtime, origin))
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
    """Delete files that were not used for too long. Then delete the least recently used ones until
    `room_bytes` more fit. Return the deleted files; files that cannot be deleted are left out."""
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
    """Delete the files of models that are not among `models`. Return how many were deleted; files
    that could not be deleted do not count."""
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


def _drop_empty(root: Path) -> None:
    """Delete folders without files. A folder in which a file was just made stays."""
    for folder in _entries(root):
        for place in (*_entries(folder), folder):
            with contextlib.suppress(OSError):
                place.rmdir()
