"""Talks to the disk: looks up this node's files of KV for the questions of other nodes. Used by one
thread.

Questions and offers have only hashes, never tokens. The tokens of each file are read once, and
their hashes are kept in memory as long as the file exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bus.models.kv import (
    BadRun,
    KvKey,
    KvLimits,
    TokenChain,
    files_mark,
    kv_files,
    kv_key,
    model_folder,
    read_header,
    run_of,
    shared_blocks,
    short_hashes,
)
from bus.models.lora import FOLDER
from bus.wire.ids import NodeId
from bus.wire.kv import AskRun
from worker.models.file_hashes import FileChanged, Hashes, Stopped, held_files

CONFIG = "config.json"
WEIGHTS = ".safetensors"


@dataclass(frozen=True, slots=True)
class LentFile:
    """A file that was offered to another node. A read fails if another file has replaced it since,
    or if its size has changed. Its time of use may change."""

    real: Path
    size_bytes: int
    inode: int

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset` on. Raises OSError, FileChanged."""
        with self.real.open("rb") as file:
            seen = os.fstat(file.fileno())
            if (seen.st_size, seen.st_ino) != (self.size_bytes, self.inode):
                raise FileChanged(f"{self.real.name} has changed on the disk")
            return os.pread(file.fileno(), length, offset)


@dataclass(frozen=True, slots=True)
class RunMatch:
    """The run that shares the most blocks with a prompt, and its file. `blocks`: how many blocks
    they share. `origin`: the node that computed the run; empty if this node did."""

    name: str
    origin: str
    blocks: int
    file: LentFile


class RunShelf:
    """The files of KV in the folder of `limits`."""

    def __init__(self, limits: KvLimits) -> None:
        self._limits = limits
        self._hashes: dict[Path, tuple[int, bytes]] = {}
        """By file: its inode, and the short hashes of its blocks; empty if it is no valid run."""

    def best(self, ask: AskRun, model_path: Path) -> RunMatch | None:
        """Return the run that shares most blocks with a prompt; None if none shares a block. Raises
        OSError."""
        key = kv_key(files_mark(model_path), ask.how)
        folder = model_folder(self._limits.root, ask.model) / key.folder
        best: RunMatch | None = None
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(folder.iterdir()):
                run, inode, size = run_of(path.name), 0, 0
                with contextlib.suppress(OSError):
                    seen = path.stat()
                    inode, size = seen.st_ino, seen.st_size
                if run is None or not inode:
                    continue
                blocks = shared_blocks(ask.hashes, self._hashes_of(path, inode, key.how))
                if blocks > (0 if best is None else best.blocks):
                    best = RunMatch(*run, blocks, LentFile(path, size, inode))
        return best

    def copies(self) -> dict[NodeId, list[str]]:
        """Return the names of the runs that other nodes computed, by node."""
        names: dict[NodeId, list[str]] = {}
        for file in kv_files(self._limits.root):
            if file.origin and (run := run_of(file.path.name)) is not None:
                names.setdefault(NodeId(file.origin), []).append(run[0])
        self._hashes = {path: value for path, value in self._hashes.items() if path.exists()}
        return names

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return those of `names` that this node no longer has."""
        runs = (run_of(file.path.name) for file in kv_files(self._limits.root))
        here = {run[0] for run in runs if run is not None}
        return [name for name in names if name not in here]

    def delete_copies(self, origin: NodeId, names: Iterable[str]) -> int:
        """Delete this node's copies of the KV files `names` that the node `origin` computed.
        Return how many were deleted; files that cannot be deleted do not count."""
        wanted, count = {(name, str(origin)) for name in names}, 0
        for file in kv_files(self._limits.root):
            if run_of(file.path.name) in wanted:
                with contextlib.suppress(OSError):
                    file.path.unlink()
                    count += 1
        return count

    def _hashes_of(self, path: Path, inode: int, how: str) -> bytes:
        stored = self._hashes.get(path)
        if stored is not None and stored[0] == inode:
            return stored[1]
        hashes, run = b"", run_of(path.name)
        with contextlib.suppress(OSError, BadRun), path.open("rb") as file:
            header = read_header(file, "" if run is None else run[0], how)
            hashes = short_hashes(TokenChain(header.run.tokens, seed=header.run.seed))
        self._hashes[path] = inode, hashes
        return hashes


def content_for(key: KvKey, path: Path, adapter: str, hashes: Hashes, stopped: Stopped) -> str:
    """Return the hash of the contents of the model in `path`. Raises FileChanged if its files are
    not the files of the key, or change meanwhile; and the errors of `content_of`."""
    if kv_key(files_mark(path), key.how) == key:
        content = content_of(path, adapter, hashes, stopped)
        if kv_key(files_mark(path), key.how) == key:
            return content
    raise FileChanged("the model's files have changed since this KV was computed")


def content_of(folder: Path, adapter: str, hashes: Hashes, stopped: Stopped) -> str:
    """Return a hash of the contents of all model files that KV depends on. It is equal on all nodes
    that have these files. The first call for a model reads all weights. Raises OSError,
    FileChanged, Interrupted."""
    beside = f"{FOLDER}/{adapter}/"
    content = hashlib.sha256()
    for held in held_files(folder):
        is_base = "/" not in held.path and (held.path == CONFIG or held.path.endswith(WEIGHTS))
        if is_base or (adapter and held.path.startswith(beside)):
            entry = hashes.of(held, lambda _done: None, stopped)
            content.update(f"{held.path}\t{entry.size_bytes}\t{entry.sha256}\n".encode())
    return content.hexdigest()
