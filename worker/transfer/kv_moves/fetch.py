"""The pieces of one file that is copied from another node.

Pure: time arrives as `now`. The file is requested in pieces, a few at a time. A piece that was not
requested, or that has the wrong length, is refused. A piece that does not arrive soon is requested
again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.wire.kv import RunOffered
from bus.wire.messages.weights import PIECE_BYTES, AskPiece

WINDOW = 8


@dataclass(slots=True)
class RunFetch:
    """The copy of an offered file. It must be complete by `deadline_at`. A piece that has not
    arrived is requested again after `again_s`."""

    offered: RunOffered
    deadline_at: float
    again_s: float
    received_bytes: int = 0
    _next: int = 0
    _open: dict[int, float] = field(default_factory=dict[int, float])
    """The offsets of the requested pieces that have not arrived, with the time of the request."""

    @property
    def is_complete(self) -> bool:
        return self.received_bytes == self.offered.size_bytes

    def is_late(self, now: float) -> bool:
        return now >= self.deadline_at and not self.is_complete

    def asks(self, now: float) -> list[AskPiece]:
        """Return the pieces to request now: new ones, and pieces that did not arrive in time."""
        offsets = [offset for offset, at in self._open.items() if now - at >= self.again_s]
        while len(self._open) < WINDOW and self._next < self.offered.size_bytes:
            offsets.append(self._next)
            self._open[self._next] = now
            self._next += PIECE_BYTES
        for offset in offsets:
            self._open[offset] = now
        digest, path = self.offered.digest, self.offered.name
        return [
            AskPiece(digest=digest, path=path, offset=offset, length=self._length(offset))
            for offset in offsets
        ]

    def take(self, offset: int, length: int) -> bool:
        """Record a piece that arrived. Return whether it was requested and has the right length."""
        if offset not in self._open or length != self._length(offset):
            return False
        del self._open[offset]
        self.received_bytes += length
        return True

    def _length(self, offset: int) -> int:
        return min(PIECE_BYTES, self.offered.size_bytes - offset)
