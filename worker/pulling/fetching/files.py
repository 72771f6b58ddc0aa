"""Track the bytes of a pull's files: which have arrived, which to request next, and which are
verified.

Pure. A file is requested in runs (ranges of consecutive pieces). A piece is handed out to one
reader; it is handed out again only after it was put back. If a hub does not support ranges, one
reader takes each whole file as it comes. Only the whole file's hash is known. A file with a wrong
hash is discarded and fetched again, once; the second time the pull fails. Small files come first,
each from its beginning. A file of which only some pieces are wanted has no known hash; it is
complete when these pieces are here.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from bus.wire.messages.weights import PIECE_BYTES
from worker.models.manifest import piece_count
from worker.pulling.listing import HubFile, HubListing, PullFailed

RUN_PIECES = 64
"""Maximum pieces per request."""
MOST_SPOILT = 2
LANDED, GIVEN, MISSING, SPARED = 1, 2, 0, 3
"""The state of a piece: here, handed out, missing, or not wanted."""


@dataclass(frozen=True, slots=True)
class PieceRun:
    """The pieces of a file from `first` up to, not including, `last`; `begin` and `end` are the
    same in bytes. `spoilt` counts wrong hashes of the file before the pieces were handed out.
    `streams`: the run includes all missing pieces of the file; no other piece of the file is handed
    out until the run is put back."""

    path: str
    first: int
    last: int
    begin: int
    end: int
    spoilt: int = 0
    streams: bool = False


class PullFiles:
    """The files of one listing. `have` has a byte per piece of each file, 1 if it is here;
    `checked` are the files with a verified hash. `wanted` has a byte per piece of some files, 1 if
    the piece is wanted; of all other files, every piece is.

    Invariant: `done_bytes` is the sum of arrived wanted pieces, and `checked` files have arrived
    completely.
    """

    def __init__(
        self,
        listing: HubListing,
        have: Mapping[str, bytes],
        checked: Set[str] = frozenset(),
        wanted: Mapping[str, bytes] | None = None,
    ) -> None:
        self.refusal: PullFailed | None = None
        self.total_bytes = self.done_bytes = 0
        self._files = {listed.path: listed for listed in listing.files}
        self._order = sorted(self._files, key=lambda path: (self._files[path].size_bytes, path))
        self._pieces: dict[str, bytearray] = {}
        self._checked: set[str] = set()
        self._sparse: set[str] = set()
        self._spoilt: dict[str, int] = {}
        self._streamed: set[str] = set()
        self._has_ranges = True
        for path, file in self._files.items():
            self._begin(file, have.get(path, b""), (wanted or {}).get(path))
            if path in checked and self.has_all(path) and path not in self._sparse:
                self._checked.add(path)

    def _begin(self, file: HubFile, have: bytes, wanted: bytes | None) -> None:
        count = piece_count(file.size_bytes)
        pieces = bytearray(LANDED if mark == LANDED else MISSING for mark in have)
        pieces = pieces if len(pieces) == count else bytearray(count)
        if wanted is not None and not all(wanted):
            self._sparse.add(file.path)
            pieces = bytearray(
                mark if is_wanted else SPARED
                for mark, is_wanted in zip(pieces, wanted, strict=True)
            )
        self._pieces[file.path] = pieces
        for index, mark in enumerate(pieces):
            length = self._length(file, index)
            self.total_bytes += length if mark != SPARED else 0
            self.done_bytes += length if mark == LANDED else 0

    @property
    def complete(self) -> bool:
        """Return whether everything wanted has arrived, and every whole file is verified."""
        return self.landed and len(self._checked) + len(self._sparse) == len(self._files)

    @property
    def landed(self) -> bool:
        """Return whether all wanted bytes have arrived, verified or not."""
        return self.done_bytes == self.total_bytes

    def next(self) -> PieceRun | None:
        """Return the next run to request; None if nothing is left to hand out."""
        for path in self._order:
            pieces = self._pieces[path]
            first = pieces.find(MISSING)
            if first < 0 or path in self._streamed:
                continue
            if not self._has_ranges:
                return self._stream(path, first)
            last = first
            while last < len(pieces) and last - first < RUN_PIECES and pieces[last] == MISSING:
                pieces[last] = GIVEN
                last += 1
            size = self._files[path].size_bytes
            begin, end = first * PIECE_BYTES, min(size, last * PIECE_BYTES)
            return PieceRun(path, first, last, begin, end, self._spoilt.get(path, 0))
        return None

    def stream(self, run: PieceRun) -> PieceRun | None:
        """Record that the hub answered with the whole file. Return the run of pieces to take from
        that answer: all that are missing. None if another reader already streams the file."""
        self._has_ranges = False
        return None if run.path in self._streamed else self._stream(run.path, 0)

    def wants(self, path: str, index: int) -> bool:
        """Return whether a piece is wanted and missing."""
        return self._pieces[path][index] in (MISSING, GIVEN)

    def has_all(self, path: str) -> bool:
        """Return whether all wanted bytes of a file have arrived, verified or not."""
        pieces = self._pieces[path]
        return MISSING not in pieces and GIVEN not in pieces

    def take(self, path: str, index: int) -> None:
        """Record that a handed-out piece is on the disk."""
        pieces = self._pieces[path]
        if self.wants(path, index):
            pieces[index] = LANDED
            self.done_bytes += self._length(self._files[path], index)

    def put_back(self, run: PieceRun) -> None:
        """Put back the missing pieces of a run, so that they are handed out again. If the run is
        older than a wrong hash of its file, nothing is put back: others may have its pieces by
        now."""
        if run.streams:
            self._streamed.discard(run.path)
        if run.spoilt != self._spoilt.get(run.path, 0):
            return
        pieces = self._pieces[run.path]
        for index in range(run.first, run.last):
            if pieces[index] == GIVEN:
                pieces[index] = MISSING

    def hashable(self, path: str) -> int:
        """Return how many bytes have arrived from the beginning of a file on, without a gap."""
        pieces = self._pieces[path]
        gaps = (at for at in (pieces.find(MISSING), pieces.find(GIVEN)) if at >= 0)
        return min(self._files[path].size_bytes, min(gaps, default=len(pieces)) * PIECE_BYTES)

    def unchecked(self) -> list[HubFile]:
        """Return the files whose hash is known and not verified yet, in order."""
        done = self._checked | self._sparse
        return [self._files[path] for path in self._order if path not in done]

    def check(self, path: str, digest: str) -> bool:
        """Record the hash of a completely arrived file; return whether it is right. If it is wrong,
        its pieces are missing again, or, the second time, the pull fails."""
        file = self._files[path]
        if digest == file.digest:
            self._checked.add(path)
            return True
        self._spoilt[path] = self._spoilt.get(path, 0) + 1
        if self._spoilt[path] >= MOST_SPOILT:
            text = (
                f"{path} arrived {MOST_SPOILT} times with a hash that differs from "
                f"the hub's list ({digest[:12]}, not {file.digest[:12]}): it was "
                "corrupted on its way, or the list is wrong"
            )
            self.refusal = self.refusal or PullFailed("spoilt", text)
        self.done_bytes -= file.size_bytes
        self._pieces[path] = bytearray(len(self._pieces[path]))
        return False

    def _stream(self, path: str, first: int) -> PieceRun:
        pieces, size = self._pieces[path], self._files[path].size_bytes
        self._streamed.add(path)
        for index in range(first, len(pieces)):
            if pieces[index] == MISSING:
                pieces[index] = GIVEN
        begin, spoilt = first * PIECE_BYTES, self._spoilt.get(path, 0)
        return PieceRun(path, first, len(pieces), begin, size, spoilt, streams=True)

    def _length(self, file: HubFile, index: int) -> int:
        return min(PIECE_BYTES, file.size_bytes - index * PIECE_BYTES)
