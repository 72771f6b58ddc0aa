"""Which bytes of the files of a pull are here, which are to be asked for next, and which are right.

Pure. A file is asked for in runs of pieces, each piece given out once until it landed or was put
back; of a hub that knows no ranges each file is asked for by one who takes all of it as it comes.
Its hash is known of the whole file alone: one whose hash is wrong is forgotten and fetched
again, once; the second time the pull fails. Small files come first, each from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from bus.wire.messages.weights import PIECE_BYTES
from worker.models.manifest import piece_count
from worker.pulling.listing import HubFile, HubListing, PullFailed

RUN_PIECES = 64
"""Pieces that one question asks for at most."""
MOST_SPOILT = 2
LANDED, GIVEN, MISSING = 1, 2, 0


@dataclass(frozen=True, slots=True)
class PieceRun:
    """The pieces of a file from `first` on, up to and without `last`; `begin` and `end` are the
    same in bytes. `spoilt` is how often the file had been found wrong when they were given out.
    `streams`: all that is missing of the file is given out with them, and nothing more of it until
    they are put back."""

    path: str
    first: int
    last: int
    begin: int
    end: int
    spoilt: int = 0
    streams: bool = False


class PullFiles:
    """The files of one listing. `have` holds of each file a byte a piece, 1 where it lies here;
    `checked` are those whose hash was found right.

    Invariant: `done_bytes` sums up what landed, and `checked` files have landed whole.
    """

    def __init__(
        self, listing: HubListing, have: Mapping[str, bytes], checked: Set[str] = frozenset()
    ) -> None:
        self.refusal: PullFailed | None = None
        self.total_bytes = listing.total_bytes
        self.done_bytes = 0
        self._files = {one.path: one for one in listing.files}
        self._order = sorted(self._files, key=lambda path: (self._files[path].size_bytes, path))
        self._pieces: dict[str, bytearray] = {}
        self._checked: set[str] = set()
        self._spoilt: dict[str, int] = {}
        self._streamed: set[str] = set()
        self._has_ranges = True
        for path, file in self._files.items():
            self._begin(file, have.get(path, b""), path in checked)

    def _begin(self, file: HubFile, have: bytes, is_checked: bool) -> None:
        count = piece_count(file.size_bytes)
        known = bytearray(1 if one == LANDED else MISSING for one in have)
        known = known if len(known) == count else bytearray(count)
        self._pieces[file.path] = known
        self.done_bytes += sum(self._length(file, n) for n, one in enumerate(known) if one)
        if is_checked and known.count(LANDED) == count:
            self._checked.add(file.path)

    @property
    def complete(self) -> bool:
        """Return whether every file is here and was found right."""
        return len(self._checked) == len(self._files)

    @property
    def landed(self) -> bool:
        """Return whether all bytes are here, right or not."""
        return self.done_bytes == self.total_bytes

    def next(self) -> PieceRun | None:
        """Return what to ask for next; None where nothing is left to give out."""
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
        """Take in that the hub answered with the whole file. Return what to take of that: all that
        is missing; None where another one streams the file already."""
        self._has_ranges = False
        return None if run.path in self._streamed else self._stream(run.path, 0)

    def wants(self, path: str, index: int) -> bool:
        """Return whether a piece is not here yet."""
        return self._pieces[path][index] != LANDED

    def has_all(self, path: str) -> bool:
        """Return whether a file is here whole, right or not."""
        return self._pieces[path].count(LANDED) == len(self._pieces[path])

    def take(self, path: str, index: int) -> None:
        """Take in that a piece which was given out is on the disk."""
        pieces = self._pieces[path]
        if pieces[index] != LANDED:
            pieces[index] = LANDED
            self.done_bytes += self._length(self._files[path], index)

    def put_back(self, run: PieceRun) -> None:
        """Put back what of a run has not landed: it is given out again. Of one that had landed
        before its file was found wrong nothing is put back: others may have its pieces by now."""
        if run.streams:
            self._streamed.discard(run.path)
        if run.spoilt != self._spoilt.get(run.path, 0):
            return
        pieces = self._pieces[run.path]
        for index in range(run.first, run.last):
            if pieces[index] == GIVEN:
                pieces[index] = MISSING

    def hashable(self, path: str) -> int:
        """Return how many bytes of a file are here from its beginning on, without a gap."""
        pieces = self._pieces[path]
        gaps = (at for at in (pieces.find(MISSING), pieces.find(GIVEN)) if at >= 0)
        return min(self._files[path].size_bytes, min(gaps, default=len(pieces)) * PIECE_BYTES)

    def unchecked(self) -> list[HubFile]:
        """Return the files that were not found right yet, those first that come first."""
        return [self._files[path] for path in self._order if path not in self._checked]

    def check(self, path: str, digest: str) -> bool:
        """Take in the hash of a file that landed whole; returns whether it is right. A wrong one's
        pieces are missing again, or, the second time, the pull has failed."""
        file = self._files[path]
        if digest == file.digest:
            self._checked.add(path)
            return True
        self._spoilt[path] = self._spoilt.get(path, 0) + 1
        if self._spoilt[path] >= MOST_SPOILT:
            text = (
                f"{path} came {MOST_SPOILT} times with another hash than the hub lists "
                f"({digest[:12]}, not {file.digest[:12]}): spoilt on its way, or the list is wrong"
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
