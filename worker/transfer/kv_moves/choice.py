"""Decide whether to copy a run of KV, and from which node.

Pure. A copy pays if it takes less time than computing its tokens. Its time is the time of sending
the file over the measured link, and of reading it from the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.models.kv import BLOCK_TOKENS
from bus.wire.kv import RunOffered, SeekRun
from worker.transfer.source import StoreAddress

BEGIN_S = 0.05
"""Seconds that a copy takes apart from its bytes."""
MOST_BYTES_PER_S = 0.25e9
"""More is not expected of a link before a copy was measured, because of encryption and disks."""
AGAIN_S, AGAIN_BYTES = 1.0, 32 << 20
"""A piece is asked for again after this time, and the expected time of these bytes."""
LATE_FACTOR, LATE_S, LATE_SHARE = 2.0, 0.25, 0.5
"""A copy is given up when it takes this many times as long as expected and this much longer, and
this share of the time of computing. It never has longer than computing takes."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The copy to make. `expected_s` until the file can be used, `wait_s` until it is given up. A
    piece that does not come is asked for again after `again_s`."""

    source: StoreAddress
    offered: RunOffered
    expected_s: float
    wait_s: float
    again_s: float


def choose(
    question: SeekRun,
    offers: Mapping[StoreAddress, RunOffered],
    bytes_per_s: Mapping[StoreAddress, float],
    most_bytes: int,
) -> CopyPlan | None:
    """Return the copy that saves most time; None if each would take longer than computing. Offers
    are left out if their link is not measured, or their file is larger than `most_bytes`."""
    best: CopyPlan | None = None
    most_s = 0.0
    for source, offered in sorted(offers.items(), key=lambda offer: offer[0]):
        speed = bytes_per_s.get(source, 0.0)
        if offered.limit_bytes_per_s:
            speed = min(speed, offered.limit_bytes_per_s)
        if speed <= 0 or not 0 < offered.size_bytes <= most_bytes:
            continue
        size = offered.size_bytes
        copying_s = BEGIN_S + size / speed
        expected_s = copying_s + size / question.read_bytes_per_s
        computing_s = saved_s(question, BLOCK_TOKENS * offered.blocks)
        if computing_s - expected_s > most_s:
            most_s = computing_s - expected_s
            late_s = max(LATE_FACTOR * copying_s + LATE_S, LATE_SHARE * computing_s)
            wait_s = min(late_s, computing_s)
            again_s = AGAIN_S + AGAIN_BYTES / speed
            best = CopyPlan(source, offered, expected_s, wait_s, again_s)
    return best


def saved_s(question: SeekRun, length: int) -> float:
    """Return the expected seconds of computing from the tokens that the runner has up to `length`,
    rounded down to a step of the question."""
    steps, missing = len(question.saves_s), question.tokens - question.have
    step = steps * (min(length, question.tokens) - question.have) // max(missing, 1)
    if step < steps and length >= question.tokens - BLOCK_TOKENS:
        step = steps  # only the last, unfinished block is missing
    return question.saves_s[step - 1] if step > 0 else 0.0
