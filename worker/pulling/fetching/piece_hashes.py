"""Talks to the disk: the SHA-256 of each piece of a file of which only some pieces are fetched.

A hub gives only the hash of a whole file. So a piece is hashed when it arrives, and compared with
that hash later. This finds a piece that the disk lost or changed. It cannot find a piece that was
wrong when it arrived.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from bus.wire.messages.weights import HASH_BYTES, PIECE_BYTES

HASHES = "hashes"
UNKNOWN = bytes(HASH_BYTES)


class PieceHashes:
    """The hashes below `folder`: `hashes/<number>` has those of a file, in the order of its pieces.
    The number of a file is its position in `paths`."""

    def __init__(self, folder: Path, paths: Iterable[str]) -> None:
        self._folder = folder / HASHES
        self._numbers = {path: number for number, path in enumerate(paths)}

    def note(self, path: str, index: int, content: bytes) -> None:
        """Record the hash of a piece. Raises OSError."""
        self._folder.mkdir(exist_ok=True)
        note = os.open(self._note(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(note, hashlib.sha256(content).digest(), index * HASH_BYTES)
        finally:
            os.close(note)

    def with_hashes(self, path: str, have: bytes) -> bytes:
        """Return `have`, the pieces of a file that are here, without pieces that have no hash."""
        hashes = self._read(path)
        return bytes(mark and _of(hashes, index) != UNKNOWN for index, mark in enumerate(have))

    def differing(self, path: str, file: Path, pieces: bytes) -> list[int]:
        """Return which of these `pieces` of a file, one byte each, differ from their hash. Raises
        OSError."""
        hashes = self._read(path)
        with open(file, "rb") as opened:
            return [
                index
                for index, mark in enumerate(pieces)
                if mark
                and hashlib.sha256(
                    os.pread(opened.fileno(), PIECE_BYTES, index * PIECE_BYTES)
                ).digest()
                != _of(hashes, index)
            ]

    def _read(self, path: str) -> bytes:
        try:
            return self._note(path).read_bytes()
        except FileNotFoundError:
            return b""

    def _note(self, path: str) -> Path:
        return self._folder / str(self._numbers[path])


def _of(hashes: bytes, index: int) -> bytes:
    """Return the hash of a piece; zeros if it was not recorded."""
    return hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES].ljust(HASH_BYTES, b"\0")
