"""What each rank of a group did for a traced request when, as it tells it itself.

Pure. Seconds count from `RankSpans.began_at`, an instant of that rank's own monotonic clock. Turns
follow each other without gaps, and so do the parts of a turn. The lead passes on what it is told,
with how far the rank's clock is from its own.
"""

from __future__ import annotations

from typing import Literal

from bus.wire.array_frames import ArrayFrame
from bus.wire.ids import RequestId

RankPartName = Literal["queued", "idle", "host", "wait", "receive", "compute", "send"]
"""What a rank's engine is at. `queued`: the plan with the request's first row waits for it; `idle`:
it waits for the next plan; `host`: it reads the plan and builds the step; `wait`: for the first
byte from another rank; `receive`: until all of them are there; `compute`: its device computes;
`send`: until all bytes have left."""
RANK_PARTS: tuple[RankPartName, ...] = (
    "queued",
    "idle",
    "host",
    "wait",
    "receive",
    "compute",
    "send",
)
RankTurnName = Literal["queued", "prefill", "decode", "other"]
"""What a turn did for the request; `other`: it was other requests' alone."""
Crosses = Literal["plan", "hidden", "tokens"]
"""What goes from rank to rank: a step's plan, hidden states, sampled tokens."""


class RankTurn(ArrayFrame, frozen=True):
    """From when the engine takes up the plan of `step` to when it takes up the next one; of so many
    `steps`, where several are told as one. `tokens` are the request's own. `seconds` are those of
    each part, in the order of `RANK_PARTS`."""

    name: RankTurnName
    step: int
    steps: int
    began_s: float
    ended_s: float
    tokens: int
    seconds: tuple[float, ...]


class RankPart(ArrayFrame, frozen=True):
    """A part of a turn."""

    name: RankPartName
    began_s: float
    ended_s: float


class RankCrossing(ArrayFrame, frozen=True):
    """What was sent to `peer`, from `at_s` on, or had from it, all of it by `at_s`. The `number`
    counts those of one step with the same peer and of the same kind. Who has a plan does not tell
    its `bytes_`."""

    what: Crosses
    step: int
    number: int
    peer: int
    sent: bool
    bytes_: int
    at_s: float


class RankTotal(ArrayFrame, frozen=True):
    """All that was sent to `peer` of one kind while the request was here, or had from it."""

    what: Crosses
    peer: int
    sent: bool
    count: int
    bytes_: int


class RankSpans(ArrayFrame, frozen=True):
    """What one rank did from the first plan with a row of the request on. `parts` and `crossings`
    are those of its first turns."""

    began_at: float
    ended_s: float
    turns: tuple[RankTurn, ...]
    parts: tuple[RankPart, ...]
    crossings: tuple[RankCrossing, ...]
    totals: tuple[RankTotal, ...]


class RankTraced(ArrayFrame, tag="rank", frozen=True):
    """What one rank of a group did for a request with a `trace`, told once `Traced` was, and as a
    rule after the terminal. `offset_s` is to be taken from the rank's instants to have the lead's,
    and may be wrong by `error_s`. `spans` None: it has nothing to tell. Not sent to versions before
    11."""

    request_id: RequestId
    rank: int
    offset_s: float
    error_s: float
    spans: RankSpans | None
