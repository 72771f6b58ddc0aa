"""One node that has a model, as one fetch sees it: its life, its window, what counts against it.

Pure: time arrives as `now`. The window of open pieces grows by one with each quick answer and
halves with a slow one (additive increase, multiplicative decrease), so that a slow link is not
asked for more than it brings in time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bus.wire.ids import NodeId
from bus.wire.messages.weights import Manifest
from worker.transfer.pieces import Piece

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
"""A source that was asked so often, and sent nothing new in between, is left."""

Life = Literal["new", "asked", "hashing", "offered", "serving", "resting", "out"]
Due = Literal["ask", "rest", "leave"]


@dataclass(frozen=True, slots=True, order=True)
class StoreAddress:
    """A node that has the model, and one address of its store."""

    node: NodeId
    address: str


@dataclass(slots=True)
class Source:
    """`since_at` is when its present life began, or last moved; `open` holds the pieces asked for
    and when; `manifest` is what it offers; `why` its last failing."""

    source: StoreAddress
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
        """It enters a life."""
        self.life, self.since_at = life, now

    def may_ask(self, now: float) -> bool:
        """Whether one more piece may be asked for."""
        return self.life == "serving" and len(self.open) < self.window and now >= self.quiet_until

    def answered(self, piece: Piece, now: float) -> None:
        """A piece came; if it was asked for, how quickly says how many may be open."""
        asked_at = self.open.pop(piece, None)
        if asked_at is None:
            return
        if now - asked_at <= QUICK_S:
            self.window = min(MAX_WINDOW, self.window + 1)
        elif now - asked_at >= SLOW_S:
            self.window = max(1, self.window // 2)

    def useful(self) -> None:
        """It sent something new: what counted against it in between is forgiven."""
        self.late = self.manifests = 0

    def pause(self, piece: Piece, now: float) -> bool:
        """It has too much to do. Whether the piece was asked for here."""
        self.window, self.quiet_until = 1, now + BUSY_S
        return self.open.pop(piece, None) is not None

    def overdue(self, now: float) -> list[Piece]:
        """The pieces that did not come in time; they are not open any more."""
        late = [piece for piece, at in self.open.items() if now - at >= PIECE_S]
        for piece in late:
            del self.open[piece]
        if late:
            self.late += len(late)
            self.window = 1
        return late

    def due(self, now: float) -> Due | None:
        """What its silence has come to; `why` says what it waited for in vain."""
        age_s = now - self.since_at
        match self.life:
            case "new":
                return "ask"
            case "asked" if age_s >= ANSWER_S:
                self.why = f"did not show its manifest within {ANSWER_S:g} s"
                return "rest"
            case "hashing" if age_s >= HASHING_S:
                self.why = f"stopped hashing its files for {HASHING_S:g} s"
                return "rest"
            case "serving" if self.late >= MAX_LATE:
                self.why = f"left {self.late} pieces in a row unanswered for {PIECE_S:g} s"
                return "rest"
            case "resting" if self.manifests >= MAX_MANIFESTS:
                return "leave"
            case "resting" if age_s >= REST_S:
                return "ask"
            case _:
                return None

    def rest(self, now: float, why: str) -> list[Piece]:
        """Nothing is asked of it for a while; returns what was open."""
        pieces = list(self.open)
        self.open.clear()
        self.manifest, self.window = None, FIRST_WINDOW
        self.why = why or self.why
        self.turn("resting", now)
        return pieces
