"""Each rank's own report of its work on a traced request: what it did at which time.

Pure. Seconds count from `RankSpans.began_at`, a time on that rank's own monotonic clock. A turn is
the time that the engine spends on one step plan. Turns follow each other without gaps, and so do
the parts of a turn. The lead forwards each report with the offset between the rank's clock and its
own.
"""

from __future__ import annotations

from typing import Literal

from bus.wire.array_frames import ArrayFrame
from bus.wire.ids import RequestId

RankPartName = Literal["queued", "idle", "host", "wait", "receive", "compute", "send"]
"""The state of a rank's engine. `queued`: the plan with the request's first row waits for the
engine. `idle`: the engine waits for the next plan. `host`: it reads the plan and builds the step.
`wait`: it waits for the first byte from another rank. `receive`: it waits until all bytes have
arrived. `compute`: its device computes. `send`: it waits until all bytes are sent.
"""
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
"""The work of a turn for the request; `other`: only other requests' work."""
Crosses = Literal["plan", "hidden", "tokens"]
"""The data between ranks: a step's plan, hidden states, sampled tokens."""


class RankTurn(ArrayFrame, frozen=True):
    """The time from the engine's start of the plan of `step` to its start of the next plan.
    `steps`: how many steps this turn combines. `tokens`: the tokens of the traced request.
    `seconds`: the duration of each part, in the order of `RANK_PARTS`."""

    name: RankTurnName
    step: int
    steps: int
    began_s: float
    ended_s: float
    tokens: int
    seconds: tuple[float, ...]


class RankPart(ArrayFrame, frozen=True):
    """A part of a `RankTurn`: what the engine did, and when."""

    name: RankPartName
    began_s: float
    ended_s: float


class RankCrossing(ArrayFrame, frozen=True):
    """Data sent to `peer` from `at_s` on, or received from it completely by `at_s`. `number` counts
    the transfers of one step with the same peer and kind. A rank that receives a plan does not
    report its `bytes_`."""

    what: Crosses
    step: int
    number: int
    peer: int
    sent: bool
    bytes_: int
    at_s: float


class RankTotal(ArrayFrame, frozen=True):
    """The sum of one kind of data sent to `peer`, or received from it, during the request."""

    what: Crosses
    peer: int
    sent: bool
    count: int
    bytes_: int


class RankSpans(ArrayFrame, frozen=True):
    """The work of one rank on a request, since the first plan with a row of the request. `parts`
    and `crossings` are those of its first turns."""

    began_at: float
    ended_s: float
    turns: tuple[RankTurn, ...]
    parts: tuple[RankPart, ...]
    crossings: tuple[RankCrossing, ...]
    totals: tuple[RankTotal, ...]


class RankTraced(ArrayFrame, tag="rank", frozen=True):
    """One rank's report on a request with a `trace`, sent once after `Traced`, usually after the
    terminal. Subtract `offset_s` from the rank's times to get the lead's; it is accurate to
    `error_s`. `spans` None: the rank has nothing to report. Not sent to versions before 11."""

    request_id: RequestId
    rank: int
    offset_s: float
    error_s: float
    spans: RankSpans | None
