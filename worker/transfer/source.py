"""The sources of one download: their states, their windows of open requests, and their failures.

Pure: time arrives as `now`. The window of open pieces grows by one with each fast answer and halves
with a slow one (additive increase, multiplicative decrease). So a source on a slow link is not
asked for more pieces than the link can carry in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.weights import AskManifest, AskPiece, Manifest
from worker.transfer.pieces import Piece, Pieces

ANSWER_S = 10.0
HASHING_S = 20.0
PIECE_S = 15.0
REST_S = 5.0
BUSY_S = 0.5
FIRST_WINDOW, MAX_WINDOW = 2, 8
QUICK_S, SLOW_S = 2.0, 5.0
MAX_LATE = 3
MAX_BAD = 3
MAX_MANIFESTS = 8
"""A source that was asked for its manifest this many times without sending anything new is
dropped."""

Life = Literal["new", "asked", "hashing", "offered", "serving", "resting", "out"]
Due = Literal["ask", "rest", "leave"]


@dataclass(frozen=True, slots=True, order=True)
class StoreAddress:
    """A node that has the model, and one address at which it serves its files."""

    node: NodeId
    address: str


@dataclass(frozen=True, slots=True)
class AskSource:
    """Send this request (for a manifest or a piece) to a source."""

    source: StoreAddress
    message: AskManifest | AskPiece


@dataclass(slots=True)
class Source:
    """One source of a download. `since_at` is the beginning of its present state (`life`), or the
    last progress in it. `open` maps requested pieces to the time of the request. No piece is
    requested before `quiet_until`. Times are monotonic. `manifest` is what the source offers; `why`
    is its last failure."""

    address: StoreAddress
    life: Life = "new"
    since_at: float = 0.0
    hashed_bytes: int = 0
    manifest: Manifest | None = None
    window: int = FIRST_WINDOW
    quiet_until: float = 0.0
    open: dict[Piece, float] = field(default_factory=dict[Piece, float])
    late: int = 0
    bad: int = 0
    manifests: int = 0
    why: str = ""

    def turn(self, life: Life, now: float) -> None:
        self.life, self.since_at = life, now

    def may_ask(self, now: float) -> bool:
        """Return whether one more piece may be requested."""
        return self.life == "serving" and len(self.open) < self.window and now >= self.quiet_until

    def answered(self, piece: Piece, now: float) -> None:
        """Record that a piece arrived; if it was requested, its speed adjusts the window."""
        asked_at = self.open.pop(piece, None)
        if asked_at is None:
            return
        if now - asked_at <= QUICK_S:
            self.window = min(MAX_WINDOW, self.window + 1)
        elif now - asked_at >= SLOW_S:
            self.window = max(1, self.window // 2)

    def useful(self) -> None:
        """Record that the source sent something new: its earlier failures no longer count."""
        self.late = self.manifests = 0

    def pause(self, piece: Piece, now: float) -> bool:
        """Record that the source is too busy to send a piece. Return whether the piece was
        requested from it."""
        self.window, self.quiet_until = 1, now + BUSY_S
        return self.open.pop(piece, None) is not None

    def overdue(self, now: float) -> list[Piece]:
        """Return the pieces whose answers are overdue; they no longer count as requested from this
        source."""
        late = [piece for piece, at in self.open.items() if now - at >= PIECE_S]
        for piece in late:
            del self.open[piece]
        if late:
            self.late += len(late)
            self.window = 1
        return late

    def due(self, now: float) -> Due | None:
        """Return what to do about a source that is silent; None: nothing yet. Sets `why` to the
        message that did not arrive."""
        age_s = now - self.since_at
        match self.life:
            case "new":
                return "ask"
            case "asked" if age_s >= ANSWER_S:
                self.why = f"did not send its manifest within {ANSWER_S:g} s"
                return "rest"
            case "hashing" if age_s >= HASHING_S:
                self.why = f"made no progress hashing its files for {HASHING_S:g} s"
                return "rest"
            case "serving" if self.late >= MAX_LATE:
                self.why = f"did not send {self.late} pieces in a row within {PIECE_S:g} s each"
                return "rest"
            case "resting" if self.manifests >= MAX_MANIFESTS:
                return "leave"
            case "resting" if age_s >= REST_S:
                return "ask"
            case _:
                return None

    def rest(self, now: float, why: str) -> list[Piece]:
        """Request nothing from the source for a while. Return its open pieces, which other sources
        can deliver."""
        pieces = list(self.open)
        self.open.clear()
        self.manifest, self.window = None, FIRST_WINDOW
        self.why = why or self.why
        self.turn("resting", now)
        return pieces

    def leave(self, now: float, why: str) -> list[Piece]:
        """Drop the source; return its open pieces."""
        pieces = self.rest(now, why)
        self.turn("out", now)
        return pieces

    def ask_manifest(self, model: ModelId, now: float) -> AskSource:
        self.manifests += 1
        self.late = 0
        self.turn("asked", now)
        return AskSource(self.address, AskManifest(model=model))

    def is_hashing(self, done_bytes: int, now: float) -> bool:
        """Record that the source is still hashing its files; return whether it has hashed more
        since its last report."""
        if self.life == "asked":
            self.turn("hashing", now)
        moved = self.life == "hashing" and done_bytes > self.hashed_bytes
        if moved:
            self.hashed_bytes, self.since_at = done_bytes, now
        return moved


class SourcePool:
    """All sources of one download, with their addresses as keys."""

    def __init__(self, addresses: Iterable[StoreAddress]) -> None:
        self._sources: dict[StoreAddress, Source] = {}
        self.add(addresses)

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources.values())

    def add(self, addresses: Iterable[StoreAddress]) -> None:
        """Add sources; known ones stay unchanged."""
        for address in addresses:
            self._sources.setdefault(address, Source(address))

    def at(self, address: StoreAddress) -> Source | None:
        """Return the source at an address; None if it is unknown or was dropped."""
        source = self._sources.get(address)
        return None if source is None or source.life == "out" else source

    def lives(self) -> set[Life]:
        return {source.life for source in self}

    def choose(self, begun: frozenset[str], now: float, *, patient: bool) -> Manifest | None:
        """Choose the content to fetch and make its sources serve: the content of an existing
        staging folder (`begun`), else the first offered. None while nothing is offered. If
        `patient`, also None while a source of such a folder may still come."""
        offers = sorted(
            (source for source in self if source.life == "offered"),
            key=lambda source: (source.since_at, source.address),
        )
        shown = [source.manifest for source in offers if source.manifest is not None]
        staged = [manifest for manifest in shown if manifest.digest in begun]
        waits = patient and self.lives() & {"new", "asked", "hashing"}
        if not shown or (begun and not staged and waits):
            return None
        chosen = (staged or shown)[0]
        for source in offers:
            if source.manifest and source.manifest.digest == chosen.digest:
                source.turn("serving", now)
        return chosen

    def ask(self, pieces: Pieces, digest: str, now: float) -> Iterator[AskSource]:
        """Yield requests for as many pieces as the windows of the sources allow."""
        for source in self:
            while source.may_ask(now):
                piece = pieces.next() or self._overdue_elsewhere(source, pieces, now)
                if piece is None:
                    break
                source.open[piece] = now
                length = pieces.length(piece)
                ask = AskPiece(digest=digest, path=piece.path, offset=piece.offset, length=length)
                yield AskSource(source.address, ask)

    def _overdue_elsewhere(self, idle: Source, pieces: Pieces, now: float) -> Piece | None:
        """Return a piece that another source delivers slowly, so that the source `idle` can be
        asked for it too. Called when no other piece is left to request (BitTorrent's endgame)."""
        if idle.open:
            return None
        for source in self:
            for piece, asked_at in source.open.items():
                if now - asked_at >= QUICK_S and not pieces.has(piece):
                    return piece
        return None

    def refusal(self, model: ModelId, pieces: Pieces | None, what: str) -> Refusal:
        """Return the refusal when no source is left, or none answers; `facts["tried"]` lists each
        with its failure."""
        tried = {
            f"{source.address.node} at {source.address.address}": source.why
            or f"reported no error (state: {source.life})"
            for source in sorted(self, key=lambda source: source.address)
        }
        failures = "; ".join(f"{name} {why}" for name, why in tried.items())
        failures = failures or "no node offers it"
        return Refusal(
            reason="weights_unavailable",
            message=f"{model} could not be fetched: {what} ({failures})",
            facts={
                "tried": tried,
                "done_bytes": pieces.done_bytes if pieces else 0,
                "total_bytes": pieces.total_bytes if pieces else 0,
            },
        )
