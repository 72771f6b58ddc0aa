"""Track which pieces of a model have arrived, and which to request next.

Pure. A piece counts only if its SHA-256 is the manifest's. Small files come first, each file from
its beginning; failed requests are repeated before new ones. If only some layers are wanted, the
first piece of each safetensors file says which other pieces are needed. Nothing else of those files
is requested until all first pieces have arrived.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from bus.wire.messages.weights import PIECE_BYTES, FileEntry, Manifest
from worker.models.layer_bytes import SUFFIX, Layers, wanted_pieces
from worker.models.manifest import piece_count, piece_hash, piece_length

Taken = Literal["new", "known", "bad", "foreign"]


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Identifies a piece of fixed length: number `index` of the file `path`."""

    path: str
    index: int

    @property
    def offset(self) -> int:
        """Return the piece's offset in its file, in bytes."""
        return self.index * PIECE_BYTES


def piece_at(path: str, offset: int) -> Piece:
    """Return the piece that begins at `offset`, a multiple of the piece's length."""
    return Piece(path, offset // PIECE_BYTES)


@dataclass(frozen=True, slots=True)
class Staged:
    """The contents of an opened staging folder: per file one byte per piece, 1 if the piece has
    arrived. Pieces are unverified until their file is hashed. `free_bytes` is the free space of the
    disk. `heads` are the first pieces of safetensors files, if they have arrived."""

    have: Mapping[str, bytes]
    free_bytes: int
    heads: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


class Pieces:
    """The pieces of one manifest, or the pieces that `layers` need. Invariant: `done_bytes` is the
    size of the needed pieces that this node has, `total_bytes` the size of all needed pieces whose
    size is known."""

    def __init__(self, manifest: Manifest, staged: Staged, layers: Layers | None = None) -> None:
        self._layers = layers
        self._wanted: dict[str, bytes] = {}
        self._heads: dict[str, bytes] = {}
        self._unread: set[str] = set()
        self._finished: list[str] = []
        self._entries = {entry.path: entry for entry in manifest.files}
        self._have: dict[str, bytearray] = {}
        self._missing: dict[str, int] = {}
        self._again: deque[Piece] = deque()
        self._cursor = 0
        self._order: deque[str] = deque()
        self.total_bytes = self.done_bytes = 0
        for entry in manifest.files:
            self._begin(entry, staged)
        if not self._unread:
            self._narrow()
        self._count()
        self._order.extend(self._unfinished())

    def _begin(self, entry: FileEntry, staged: Staged) -> None:
        path, count = entry.path, piece_count(entry.size_bytes)
        have = bytearray(staged.have.get(path, b""))
        if len(have) != count:
            have = bytearray(count)
        self._wanted[path] = b"\1" * count
        if self._layers is not None and path.endswith(SUFFIX) and count:
            self._wanted[path] = b"\1" + bytes(count - 1)
            head = staged.heads.get(path)
            if head is None:
                have[0] = 0
                self._unread.add(path)
            else:
                self._heads[path] = head
        self._have[path] = have

    def _narrow(self) -> None:
        """Add the pieces of safetensors files that hold the needed layers. These pieces are known
        now, because the first piece of every file, with its header, has arrived."""
        if self._layers is not None and self._heads:
            sizes = {path: entry.size_bytes for path, entry in self._entries.items()}
            self._wanted |= wanted_pieces(self._heads, sizes, self._layers)
        self._heads.clear()

    def _count(self) -> None:
        """Compute the total bytes of all wanted pieces, and of the wanted pieces that have
        arrived."""
        self.total_bytes = self.done_bytes = 0
        for path, entry in self._entries.items():
            wanted = [index for index, is_wanted in enumerate(self._wanted[path]) if is_wanted]
            missing = [index for index in wanted if not self._have[path][index]]
            total = sum(piece_length(entry.size_bytes, index) for index in wanted)
            self._missing[path] = len(missing)
            self.total_bytes += total
            self.done_bytes += total - sum(piece_length(entry.size_bytes, i) for i in missing)

    def _unfinished(self, suffix: str = "") -> list[str]:
        """Return the incomplete files, small ones first."""
        unfinished = [
            path for path, count in self._missing.items() if count and path.endswith(suffix)
        ]
        return sorted(unfinished, key=lambda path: (self._entries[path].size_bytes, path))

    @property
    def complete(self) -> bool:
        """Return whether every wanted piece has arrived."""
        return not self._unread and self.done_bytes == self.total_bytes

    def is_whole(self, path: str) -> bool:
        """Return whether every wanted piece of this file has arrived."""
        is_final = self._layers is None or not self._unread or not path.endswith(SUFFIX)
        return is_final and self._missing[path] == 0

    def wanted_pieces(self, path: str) -> bytes | None:
        """Return one byte per piece of a file: 1 if the piece is wanted, else 0. Return None if all
        pieces are wanted."""
        wanted = self._wanted[path]
        return None if wanted.count(1) == len(wanted) else wanted

    def finished(self) -> list[str]:
        """Return the files that were completed since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def has(self, piece: Piece) -> bool:
        return bool(self._have[piece.path][piece.index])

    def length(self, piece: Piece) -> int:
        return piece_length(self._entries[piece.path].size_bytes, piece.index)

    def next(self) -> Piece | None:
        """Return the next piece to request. Each piece is returned once, unless it is put back."""
        while self._again:
            piece = self._again.popleft()
            if not self.has(piece):
                return piece
        while self._order:
            index = self._lacks(self._order[0], self._cursor)
            if index is not None:
                self._cursor = index + 1
                return Piece(self._order[0], index)
            self._order.popleft()
            self._cursor = 0
        return None

    def _lacks(self, path: str, start: int) -> int | None:
        """Return the first piece of a file, from number `start` on, that is wanted and missing; or
        None."""
        have, wanted = self._have[path], self._wanted[path]
        index = have.find(0, start)
        while index >= 0 and not wanted[index]:
            index = have.find(0, index + 1)
        return index if index >= 0 else None

    def put_back(self, pieces: Iterable[Piece]) -> None:
        """Make pieces available again that `next` returned but that did not arrive."""
        self._again.extend(pieces)

    def take(self, path: str, offset: int, content: bytes) -> Taken:
        """Accept an arrived piece and return the verdict. `known`: the piece had arrived before.
        `bad`: its hash differs from the manifest's. `foreign`: the model has no such piece."""
        entry = self._entries.get(path)
        index, rest = divmod(offset, PIECE_BYTES)
        if entry is None or rest or not 0 <= index < piece_count(entry.size_bytes):
            return "foreign"
        if self._have[path][index]:
            return "known"
        length = piece_length(entry.size_bytes, index)
        right = piece_hash(entry, index)
        if len(content) != length or hashlib.sha256(content).digest() != right:
            return "bad"
        self._have[path][index] = 1
        if self._wanted[path][index]:
            self._missing[path] -= 1
            self.done_bytes += length
        if index == 0 and path in self._unread:
            self._read(path, content)
        elif self.is_whole(path):
            self._finished.append(path)
        return "new"

    def _reorder(self) -> None:
        """Move the safetensors files after the other files, because more of their pieces are wanted
        now. The other files continue where they were, because requested pieces of them are still
        arriving."""
        others = [path for path in self._order if not path.endswith(SUFFIX)]
        if self._order and self._order[0] not in others:
            self._cursor = 0
        self._order = deque([*others, *self._unfinished(SUFFIX)])

    def _read(self, path: str, head: bytes) -> None:
        self._unread.discard(path)
        self._heads[path] = head
        if not self._unread:
            self._narrow()
            self._count()
            self._reorder()
            self._finished += [p for p in self._entries if p.endswith(SUFFIX) and self.is_whole(p)]

    def spoil(self, path: str, bad: Iterable[int]) -> None:
        """Request these corrupt pieces of a seemingly complete file again."""
        for index in sorted(set(bad)):
            if self._have[path][index] and self._wanted[path][index]:
                self._have[path][index] = 0
                self._missing[path] += 1
                self.done_bytes -= piece_length(self._entries[path].size_bytes, index)
                self._again.append(Piece(path, index))
