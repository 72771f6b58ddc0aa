"""The collective test's arithmetic: what every trimmed mean, size and verdict keeps to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.hardware.collective_test import (
    ARRAYS,
    ELEMENT_BYTES,
    JUDGED_BYTES,
    SIZES,
    STRESS_SIZES,
    culprit,
    is_skipped,
    judge_bandwidth,
    judge_latency,
    link_bytes_per_s,
    order_of,
    report_of,
    rounds_of,
    timing,
)
from bus.wire.ids import InstanceId, NodeId
from bus.wire.messages.collectives import (
    Check,
    CollectiveReading,
    CollectiveTest,
    Mode,
    RankFinding,
    SizeFinding,
    Timing,
)

SECONDS = st.floats(1e-7, 1e3)
MODES: list[Mode] = ["quick", "standard", "stress"]


def even(seconds: float) -> Timing:
    return timing([seconds])


def finding(test: CollectiveTest, seconds: float = 1.0, wrong: int = 0) -> RankFinding:
    sizes = tuple(
        SizeFinding(elements=size, skipped=True)
        if is_skipped(test, size)
        else SizeFinding(elements=size, timing=even(seconds))
        for size in test.sizes
    )
    check = Check(name="all_sum 7", elements=7, wrong=wrong, first_wrong=3 if wrong else None)
    return RankFinding(checks=(check,), latency=even(seconds), sizes=sizes, peak_bytes=9)


def reading(
    rank: int, size: int, test: CollectiveTest, found: RankFinding, **more: object
) -> CollectiveReading:
    fields = {
        "node": NodeId(f"n{rank}"), "process": "runner:00", "instance": InstanceId("i"),
        "rank": rank, "size": size, "backend": "ring", "test": test, "phase": "done", "done": 1,
        "rounds": 1, "finding": found, "pid": rank, "mlx_version": "0", "device": "cpu",
    }  # fmt: skip
    return CollectiveReading.model_validate(fields | more)


@given(st.lists(SECONDS, min_size=1, max_size=200))
def test_a_trimmed_mean_leaves_out_the_slowest_tenth_and_nothing_else(seconds: list[float]) -> None:
    found = timing(seconds)
    ordered = sorted(seconds)
    assert found.rounds == len(seconds)
    assert 0.9 * found.rounds <= found.kept <= found.rounds
    assert found.rounds - found.kept == len(seconds) // 10
    assert found.mean_s == pytest.approx(sum(ordered[: found.kept]) / found.kept)
    assert found.least_s <= found.mean_s <= ordered[found.kept - 1] <= found.most_s
    assert found.least_s <= found.median_s <= found.most_s


@given(st.lists(SECONDS, min_size=10, max_size=50), st.randoms(use_true_random=False))
def test_neither_the_order_nor_one_outlier_changes_a_trimmed_mean(
    seconds: list[float], dice: object
) -> None:
    shuffled = list(seconds)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert timing(shuffled).mean_s == timing(seconds).mean_s
    worst = max(range(len(seconds)), key=lambda at: seconds[at])
    worse = [*seconds[:worst], seconds[worst] * 1e6, *seconds[worst + 1 :]]
    assert timing(worse).mean_s == timing(seconds).mean_s


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(99e-6, "excellent"), (100e-6, "good"), (499e-6, "good"), (500e-6, "poor"), (1.0, "poor")],
)
def test_latency_is_judged_by_its_limits(seconds: float, said: str) -> None:
    assert judge_latency(seconds) == said


@pytest.mark.parametrize(
    ("bytes_per_s", "said"),
    [(5.1e9, "excellent"), (5e9, "good"), (2.1e9, "good"), (2e9, "fair"), (0.6e9, "fair"),
     (0.5e9, "poor"), (0.0, "poor")],
)  # fmt: skip
def test_bandwidth_is_judged_by_its_limits(bytes_per_s: float, said: str) -> None:
    assert judge_bandwidth(bytes_per_s, JUDGED_BYTES) == said
    assert judge_bandwidth(bytes_per_s, JUDGED_BYTES - 1) is None


@given(SECONDS, SECONDS)
def test_a_faster_link_is_never_judged_worse(one: float, other: float) -> None:
    order = ["excellent", "good", "fair", "poor"]
    quick, slow = sorted((one, other))
    assert order.index(judge_latency(quick)) <= order.index(judge_latency(slow))
    faster, slower = (judge_bandwidth(1e9 / one, JUDGED_BYTES) for one in (quick, slow))
    assert faster is not None and slower is not None
    assert order.index(faster) <= order.index(slower)


@given(st.integers(1, 10**9), st.integers(2, 32), SECONDS)
def test_a_rank_sends_its_array_once_over_two_and_at_most_twice_over_many(
    elements: int, ranks: int, seconds: float
) -> None:
    carried = link_bytes_per_s(elements, ranks, seconds)
    whole = elements * ELEMENT_BYTES / seconds
    assert link_bytes_per_s(elements, 2, seconds) == pytest.approx(whole)
    assert whole * (1 - 1e-9) <= carried < 2 * whole
    assert link_bytes_per_s(elements, ranks, 0.0) == 0.0


@given(st.sampled_from(MODES), st.integers(-(10**9), 10**11))
def test_what_is_not_skipped_fits_into_the_room_and_what_is_would_not(
    mode: Mode, room: int
) -> None:
    test = order_of(mode, room)
    assert test.cap_bytes * ARRAYS <= max(0, room)
    for size in test.sizes:
        fits = size * ELEMENT_BYTES * ARRAYS <= room
        assert is_skipped(test, size) is not fits


def test_the_modes_are_as_promised() -> None:
    quick, standard, stress = (order_of(mode, 10**12) for mode in MODES)
    assert (standard.latency_warm_ups, standard.latency_rounds) == (5, 50)
    assert (standard.warm_ups, standard.rounds) == (3, 20)
    assert quick.sizes == standard.sizes == SIZES == (1024, 65536, 1048576, 16777216)
    assert (quick.rounds, stress.rounds) == (5, 100)
    assert stress.sizes == STRESS_SIZES and stress.sizes[-1] * ELEMENT_BYTES == 512 << 20
    assert not any(is_skipped(stress, size) for size in stress.sizes)
    assert rounds_of(standard, 3) == 3 + 55 + 4 * 23


TEST = order_of("standard", 3 * 4 * 65_536)


@given(st.lists(SECONDS, min_size=2, max_size=6))
def test_a_group_is_as_fast_as_its_slowest_rank(seconds: list[float]) -> None:
    size = len(seconds)
    report = report_of([reading(r, size, TEST, finding(TEST, s)) for r, s in enumerate(seconds)])
    assert report.passed
    assert report.latency_s == max(seconds)
    measured = [one for one in report.sizes if not one.skipped]
    assert [one.elements for one in measured] == [1024, 65536]
    assert all(one.mean_s == max(seconds) for one in measured)
    assert report.bytes_per_s == link_bytes_per_s(65_536, size, max(seconds))
    assert (report.best_bytes, report.bandwidth_verdict, report.skipped) == (4 * 65_536, None, 2)
    assert all(one.bytes_per_s is None for one in report.sizes if one.skipped)


def test_the_verdict_is_from_sizes_that_can_tell_however_fast_smaller_ones_were() -> None:
    test = order_of("standard", 10**12)
    seconds = {1024: 1e-7, 65_536: 1e-5, 1_048_576: 4e-3, 16_777_216: 0.2}
    sizes = tuple(
        SizeFinding(elements=elements, timing=timing([one])) for elements, one in seconds.items()
    )
    found = finding(test).model_copy(update={"sizes": sizes})
    report = report_of([reading(rank, 2, test, found) for rank in range(2)])
    assert report.best_bytes == 4 << 20
    assert report.bytes_per_s == pytest.approx((4 << 20) / 4e-3)
    assert (report.bandwidth_verdict, report.skipped) == ("fair", 0)


def test_one_wrong_element_at_one_rank_fails_the_test_and_names_it() -> None:
    right = reading(0, 2, TEST, finding(TEST))
    report = report_of([reading(1, 2, TEST, finding(TEST, wrong=1)), right])
    assert not report.passed
    assert [(one.rank, one.node, one.check.first_wrong) for one in report.wrong] == [(1, "n1", 3)]
    assert [one.passed for one in report.ranks] == [True, False]


def test_a_test_has_not_passed_before_all_ranks_are_there_and_done() -> None:
    first = reading(0, 2, TEST, finding(TEST))
    assert not report_of([first]).passed
    assert report_of([first]).latency_s is None
    second = reading(1, 2, TEST, finding(TEST), phase="bandwidth")
    assert not report_of([first, second]).passed
    assert not report_of([reading(r, 2, TEST, RankFinding()) for r in (0, 1)]).passed
    assert report_of([first, reading(1, 2, TEST, finding(TEST))]).passed


@pytest.mark.parametrize(
    ("why", "who"),
    [
        ("rank 1 on node n-2: runner:00 was killed by a signal", (1, "n-2")),
        ("rank 0 on node a: rank 2 on node c.local cannot be reached", (2, "c.local")),
        ("rank 1 on node b: the lead has left: rank 2 on node c was silent for 3 s", (2, "c")),
        ("rank 1 on node b: runner:00 rank 0 on a: no seat within 60 s", (0, "a")),
        ("no message from n1 for 60 s", None),
    ],
)
def test_the_rank_at_fault_is_the_last_that_is_named(why: str, who: object) -> None:
    assert culprit(why) == who
