"""Which pieces of a model are here, which are to be asked for next.

Pure. A piece counts only when its SHA-256 is the manifest's. Small files come first, each file
from its beginning; what was asked for in vain is asked for again before anything new.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from bus.messages.weights import PIECE_BYTES, FileEntry, Manifest
from worker.manifest import piece_count, piece_hash, piece_length

Taken = Literal["new", "known", "bad", "foreign"]


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Piece `index` of the file `path`."""

    path: str
    index: int

    @property
    def offset(self) -> int:
        return self.index * PIECE_BYTES


def piece_at(path: str, offset: int) -> Piece:
    """The piece that begins at `offset`, a multiple of the piece's length."""
    return Piece(path, offset // PIECE_BYTES)


@dataclass(frozen=True, slots=True)
class Staged:
    """What an opened stage holds: per file one byte for each piece, 1 where it is there;
    `checked` are files whose whole content was found right. `free_bytes` of the disk."""

    have: Mapping[str, bytes]
    checked: frozenset[str]
    free_bytes: int


class Pieces:
    """The pieces of one manifest. Invariant: `done_bytes` sums up the pieces that are here."""

    def __init__(self, manifest: Manifest, staged: Staged) -> None:
        self._entries = {entry.path: entry for entry in manifest.files}
        self._have: dict[str, bytearray] = {}
        self._missing: dict[str, int] = {}
        self._again: deque[Piece] = deque()
        self._cursor = 0
        self.total_bytes = sum(entry.size_bytes for entry in manifest.files)
        self.done_bytes = 0
        for entry in manifest.files:
            self._begin(entry, staged)
        unfinished = [entry for entry in manifest.files if self._missing[entry.path]]
        unfinished.sort(key=lambda entry: (entry.size_bytes, entry.path))
        self._order = deque(entry.path for entry in unfinished)

    def _begin(self, entry: FileEntry, staged: Staged) -> None:
        count = piece_count(entry.size_bytes)
        have = bytearray(staged.have.get(entry.path, b""))
        if len(have) != count:
            have = bytearray(count)
        if entry.path in staged.checked:
            have = bytearray(b"\1" * count)
        self._have[entry.path] = have
        self._missing[entry.path] = have.count(0)
        self.done_bytes += sum(
            piece_length(entry.size_bytes, index) for index, there in enumerate(have) if there
        )

    @property
    def complete(self) -> bool:
        """Whether every piece is here."""
        return self.done_bytes == self.total_bytes

    def is_whole(self, path: str) -> bool:
        """Whether every piece of this file is here."""
        return self._missing[path] == 0

    def has(self, piece: Piece) -> bool:
        """Whether this piece is here."""
        return bool(self._have[piece.path][piece.index])

    def length(self, piece: Piece) -> int:
        """The bytes of a piece of ours."""
        return piece_length(self._entries[piece.path].size_bytes, piece.index)

    def next(self) -> Piece | None:
        """The next piece to ask for; each is given out once, until it is put back."""
        while self._again:
            piece = self._again.popleft()
            if not self.has(piece):
                return piece
        while self._order:
            index = self._have[self._order[0]].find(0, self._cursor)
            if index >= 0:
                self._cursor = index + 1
                return Piece(self._order[0], index)
            self._order.popleft()
            self._cursor = 0
        return None

    def put_back(self, pieces: Iterable[Piece]) -> None:
        """These were given out, and did not come."""
        self._again.extend(pieces)

    def take(self, path: str, offset: int, content: bytes) -> Taken:
        """Take a piece in. `known`: it is here already; `bad`: its bytes are not the
        manifest's; `foreign`: there is no such piece."""
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
        self._missing[path] -= 1
        self.done_bytes += length
        return "new"

    def spoil(self, path: str, bad: Iterable[int]) -> None:
        """These pieces of a file that seemed whole are not right on the disk: ask again."""
        for index in sorted(set(bad)):
            if self._have[path][index]:
                self._have[path][index] = 0
                self._missing[path] += 1
                self.done_bytes -= piece_length(self._entries[path].size_bytes, index)
                self._again.append(Piece(path, index))
