"""One pull of a worker, and the decisions about it that depend on nothing else. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bus.wire.ids import ModelId
from bus.wire.messages.readings import PullState
from worker.pulling.claims import PullStanding

if TYPE_CHECKING:
    from worker.pulling.processes import PullProcess
    from worker.transfer.downloads import Downloads

AT_ONCE = 2
"""Concurrent pulls from a hub, and concurrent copies; others wait."""
GIVER_S = 10.0
"""How long a pull that copies from another node waits for a node that offers the model, because
other nodes' cards may arrive this late."""
YIELDS_BYTES = 64 << 20
"""A node that has fetched this many bytes of a model continues, even if another node has
precedence."""


@dataclass(slots=True)
class Pull:
    """One pull. `heard` has the instant at which each question (a client's request for this pull)
    last arrived; the first came at `asked_at`. `from_hub` are the questions that allow a hub.
    `goes`: a client wants the files, not only a forecast. `released`: its process may fetch.
    `came`: the files are in place but the disk was not scanned since. `standing` is its relation to
    other nodes' pulls. `background`: it continues without clients; if it has failed or is paused, a
    user can resume it. `layers`: only these layers [first, last) are pulled."""

    model: ModelId
    revision: str
    state: PullState
    heard: dict[str, float] = field(default_factory=dict[str, float])
    process: PullProcess | None = None
    goes: bool = False
    released: bool = False
    no_copy: bool = False
    from_hub: set[str] = field(default_factory=set[str])
    asked_at: float = 0.0
    came: bool = False
    ended_at: float | None = None
    standing: PullStanding = field(default_factory=PullStanding)
    background: bool = False
    layers: tuple[int, int] | None = None

    @property
    def needs_hub(self) -> bool:
        """Return whether only a hub can provide the model, because a revision or only some layers
        are pulled."""
        return bool(self.revision) or self.layers is not None

    @property
    def copies(self) -> bool:
        return not self.background and not self.from_hub & self.heard.keys()

    def begin(self) -> None:
        """Let the pull's process fetch from the hub, and announce that to other nodes."""
        self.released = True
        self.standing.begin()

    def stop(self, downloads: Downloads) -> None:
        if self.process is not None:
            self.process.stop()
        if self.state.phase == "copying":
            downloads.let_go(self.model)


def background_pull(
    model: ModelId, revision: str, layers: tuple[int, int] | None, now: float, note: str
) -> Pull:
    """Return a new pull that waits for no client."""
    state = PullState(model=model, phase="waiting", note=note, layers=layers)
    return Pull(model, revision, state, goes=True, asked_at=now, background=True, layers=layers)


def why_no_giver(pull: Pull, now: float) -> str | None:
    """Return the reason to stop waiting for a node that offers the model; None while one may still
    offer it."""
    if not pull.no_copy and now - pull.asked_at <= GIVER_S:
        return None
    return pull.state.note or "no other connected node offers it"


def has_turn(pull: Pull, live: Collection[Pull]) -> bool:
    """Return whether a pull may start its process now. At most `AT_ONCE` processes fetch, and as
    many wait after their forecast (held pulls)."""
    busy = [other for other in live if other.process is not None and other is not pull]
    return sum(other.released == pull.goes for other in busy) < AT_ONCE


def yields(state: PullState) -> bool:
    return state.phase in ("listing", "fetching") and state.received_bytes < YIELDS_BYTES
