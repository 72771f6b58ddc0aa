"""The arithmetic of the collective test: sizes, trimmed means, bandwidth, verdicts, the report.

Pure. A bandwidth counts one direction of a rank's link. An `all_sum` of S bytes over n ranks sends
2 (n - 1) / n x S from each rank (NCCL's "bus bandwidth"), which is S for two ranks. A group is as
fast as its slowest rank. It passes only if no rank received a wrong element.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean, median
from typing import Literal

from bus.wire.ids import NodeId
from bus.wire.messages.collectives import (
    Backend,
    Check,
    CollectiveReading,
    CollectiveTest,
    Mode,
    Timing,
)
from bus.wire.messages.wire import Message

ELEMENT_BYTES = 4
SIZES = (1_024, 65_536, 1_048_576, 16_777_216)
STRESS_SIZES = (*SIZES, 33_554_432, 67_108_864, 134_217_728)
"""Sizes of arrays, in elements of four bytes; the last is 512 MB."""
JUDGED_BYTES = 1_000_000
"""For smaller arrays the bandwidth gets no verdict, because the latency decides how long an
`all_sum` of them takes."""
TRIMMED = 0.10
ARRAYS = 3
"""How many arrays of the largest size must fit into a rank's memory: the input, the output, and one
more for the backend or the check."""

Verdict = Literal["excellent", "good", "fair", "poor"]
LATENCY_S: tuple[tuple[float, Verdict], ...] = ((100e-6, "excellent"), (500e-6, "good"))
BYTES_PER_S: tuple[tuple[float, Verdict], ...] = (
    (5e9, "excellent"),
    (2e9, "good"),
    (0.5e9, "fair"),
)
DEADLINE_S: dict[Mode, float] = {"quick": 180.0, "standard": 600.0, "stress": 3600.0}


class SizeReport(Message):
    """The results for one array size over all ranks. `mean_s` is the slowest rank's mean; None if
    the size was skipped."""

    elements: int
    bytes: int
    skipped: bool
    mean_s: float | None = None
    bytes_per_s: float | None = None


class RankReport(Message):
    """One rank's part of the report."""

    rank: int
    node: NodeId
    process: str
    pid: int
    mlx_version: str
    device: str
    passed: bool
    latency_s: float | None
    peak_bytes: int


class WrongCheck(Message):
    """An exchange after which a rank had wrong elements."""

    rank: int
    node: NodeId
    check: Check


class CollectiveReport(Message):
    """The report on the whole test. `latency_s`: the slowest rank's trimmed mean. `bytes_per_s`:
    the best bandwidth, which arrays of `best_bytes` reached. A verdict is None without
    measurements; the verdict on the bandwidth also if no array had at least `JUDGED_BYTES`.
    `skipped`: the number of sizes too large for memory. `beside`: the models that were in memory on
    these nodes."""

    passed: bool
    mode: Mode
    backend: Backend
    ranks: tuple[RankReport, ...]
    checks: int
    elements: int
    wrong: tuple[WrongCheck, ...]
    latency_s: float | None
    latency_verdict: Verdict | None
    sizes: tuple[SizeReport, ...]
    bytes_per_s: float | None
    best_bytes: int | None
    bandwidth_verdict: Verdict | None
    skipped: int
    beside: tuple[str, ...]


def order_of(mode: Mode, room_bytes: int, beside: Sequence[str] = ()) -> CollectiveTest:
    """Return the settings of a collective test in this mode. `room_bytes`: the memory of each rank
    for all its arrays. `beside`: the models in memory on the nodes."""
    sizes = STRESS_SIZES if mode == "stress" else SIZES
    rounds = {"quick": 5, "standard": 20, "stress": 100}[mode]
    return CollectiveTest(
        mode=mode,
        sizes=sizes,
        latency_warm_ups=5,
        latency_rounds=5 if mode == "quick" else 100 if mode == "stress" else 50,
        warm_ups=3,
        rounds=rounds,
        cap_bytes=min(max(0, room_bytes) // ARRAYS, sizes[-1] * ELEMENT_BYTES),
        deadline_s=DEADLINE_S[mode],
        beside=tuple(beside),
    )


def is_skipped(test: CollectiveTest, elements: int) -> bool:
    """Return whether an array of this many elements exceeds the memory limit."""
    return elements * ELEMENT_BYTES > test.cap_bytes


def timing(seconds: Sequence[float]) -> Timing:
    """Summarise the durations of rounds, of which there is at least one. The mean leaves out the
    slowest tenth (rounded down)."""
    ordered = sorted(seconds)
    count = len(ordered) - int(len(ordered) * TRIMMED)
    return Timing(
        rounds=len(ordered),
        kept=count,
        mean_s=min(max(fmean(ordered[:count]), ordered[0]), ordered[count - 1]),
        median_s=median(ordered),
        least_s=ordered[0],
        most_s=ordered[-1],
    )


def link_bytes_per_s(elements: int, ranks: int, seconds: float) -> float:
    """Return the bandwidth of one direction of a rank's link in an `all_sum`; 0 if it took no
    time."""
    sent = 2 * (ranks - 1) / ranks * elements * ELEMENT_BYTES
    return sent / seconds if seconds > 0 else 0.0


def judge_latency(seconds: float) -> Verdict:
    """Return the verdict on a latency: below 100 us is excellent, below 500 us good."""
    for limit, verdict in LATENCY_S:
        if seconds < limit:
            return verdict
    return "poor"


def judge_bandwidth(bytes_per_s: float, array_bytes: int) -> Verdict | None:
    """Return the verdict on a bandwidth; the limits are 5, 2 and 0.5 GB/s. None if the arrays
    were too small to judge."""
    if array_bytes < JUDGED_BYTES:
        return None
    for limit, verdict in BYTES_PER_S:
        if bytes_per_s > limit:
            return verdict
    return "poor"


def rounds_of(test: CollectiveTest, checks: int) -> int:
    """Return the total number of exchanges in a test with this many checks, to show progress."""
    sizes = sum(not is_skipped(test, size) for size in test.sizes)
    latency = test.latency_warm_ups + test.latency_rounds
    return checks + latency + sizes * (test.warm_ups + test.rounds)


def report_of(readings: Sequence[CollectiveReading]) -> CollectiveReport:
    """Combine the ranks' results into one report. `readings` has the latest reading of each rank
    that has reported, and at least one.

    The test has `passed` if every rank has reported and is done, and no element of any check was
    wrong.
    """
    ranks = sorted(readings, key=lambda reading: reading.rank)
    first, test = ranks[0], ranks[0].test
    wrong = tuple(
        WrongCheck(rank=reading.rank, node=reading.node, check=check)
        for reading in ranks
        for check in reading.finding.checks
        if check.wrong
    )
    whole = [reading.rank for reading in ranks] == list(range(first.size))
    done = whole and all(reading.phase == "done" for reading in ranks)
    latency_s = _slowest([reading.finding.latency for reading in ranks]) if whole else None
    sizes = tuple(_size(ranks, elements) for elements in test.sizes) if whole else ()
    best = _best(sizes)
    checks = [check for reading in ranks for check in reading.finding.checks]
    return CollectiveReport(
        passed=done and bool(checks) and not wrong,
        mode=test.mode,
        backend=first.backend,
        ranks=tuple(_rank(reading) for reading in ranks),
        checks=len(checks),
        elements=sum(check.elements for check in checks),
        wrong=wrong,
        latency_s=latency_s,
        latency_verdict=None if latency_s is None else judge_latency(latency_s),
        sizes=sizes,
        bytes_per_s=None if best is None else best[0],
        best_bytes=None if best is None else best[1],
        bandwidth_verdict=None if best is None else judge_bandwidth(*best),
        skipped=sum(size.skipped for size in sizes),
        beside=test.beside,
    )


def culprit(why: str) -> tuple[int, str] | None:
    """Return the rank and the node whose failure ended a test, from the test's final message; None
    if the message names no rank. If a rank reports the failure of another one, the message names
    the reporting rank first. So the last rank in the message counts."""
    named = re.findall(r"rank (\d+) on (?:node )?([\w.-]+)", why)
    return (int(named[-1][0]), named[-1][1]) if named else None


def _best(sizes: Sequence[SizeReport]) -> tuple[float, int] | None:
    """Return the greatest bandwidth and the array size that reached it. Sizes below `JUDGED_BYTES`
    count only if there are no others. None without a measurement."""
    figures = [(size.bytes_per_s, size.bytes) for size in sizes if size.bytes_per_s is not None]
    telling = [figure for figure in figures if figure[1] >= JUDGED_BYTES]
    return max(telling or figures, default=None)


def _slowest(timings: Sequence[Timing | None]) -> float | None:
    """Return the longest of the ranks' mean durations in seconds; None if a rank has none."""
    means = [each.mean_s for each in timings if each is not None]
    return max(means) if len(means) == len(timings) else None


def _size(ranks: Sequence[CollectiveReading], elements: int) -> SizeReport:
    test, size = ranks[0].test, ranks[0].size
    parts = [
        part for reading in ranks for part in reading.finding.sizes if part.elements == elements
    ]
    timings = [part.timing for part in parts]
    mean_s = _slowest(timings) if len(timings) == len(ranks) else None
    return SizeReport(
        elements=elements,
        bytes=elements * ELEMENT_BYTES,
        skipped=is_skipped(test, elements),
        mean_s=mean_s,
        bytes_per_s=None if mean_s is None else link_bytes_per_s(elements, size, mean_s),
    )


def _rank(reading: CollectiveReading) -> RankReport:
    checks, latency = reading.finding.checks, reading.finding.latency
    return RankReport(
        rank=reading.rank,
        node=reading.node,
        process=reading.process,
        pid=reading.pid,
        mlx_version=reading.mlx_version,
        device=reading.device,
        passed=reading.phase == "done"
        and bool(checks)
        and not any(check.wrong for check in checks),
        latency_s=None if latency is None else latency.mean_s,
        peak_bytes=reading.finding.peak_bytes,
    )
