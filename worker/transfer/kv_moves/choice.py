"""Decide whether to copy a run of KV, and from which node.

Pure. A run is copied if that takes less time than computing its tokens. The time of a copy is that
of sending the file over the measured link, plus that of reading it from this node's disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.models.kv import BLOCK_TOKENS
from bus.wire.kv import RunOffered, SeekRun
from worker.transfer.source import StoreAddress

BEGIN_S = 0.05
"""The seconds that a copy takes in addition to the time for its bytes."""
MOST_BYTES_PER_S = 0.25e9
"""The highest speed that is assumed before a first copy was measured, because encryption and disks
may be slower than the link."""
AGAIN_S, AGAIN_BYTES = 1.0, 32 << 20
"""A piece is requested again after `AGAIN_S` plus the expected time for `AGAIN_BYTES`."""
LATE_FACTOR, LATE_S, LATE_SHARE = 2.0, 0.25, 0.5
"""A copy is given up after `LATE_FACTOR` times the expected time of sending it plus `LATE_S`, or
after `LATE_SHARE` of the time of computing if that is later. But it never gets more time than
computing would take."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The copy to make. The file is expected to be usable after `expected_s`; after `wait_s` the
    copy is given up. A piece that does not arrive is requested again after `again_s`."""

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
    """Return the copy that saves the most time; None if no copy is faster than computing. An offer
    does not count if its link is not measured, or if its file is larger than `most_bytes`."""
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
    """Return the expected seconds of computing up to `length`, from the tokens that the runner has.
    `length` is rounded down to a step of the question."""
    steps, missing = len(question.saves_s), question.tokens - question.have
    step = steps * (min(length, question.tokens) - question.have) // max(missing, 1)
    if step < steps and length >= question.tokens - BLOCK_TOKENS:
        step = steps  # only the last, unfinished block is missing
    return question.saves_s[step - 1] if step > 0 else 0.0
