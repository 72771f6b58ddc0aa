from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.blas.choice import (
    CLEARLY,
    WEIGHTS,
    Choice,
    Library,
    Measured,
    Parity,
    choose,
    kernels_for,
    thread_counts,
    variables,
)
from conf.blas.spans import LEAST_SAMPLES, TimeRange, span_of

OPENBLAS, MKL = Library("/lib/libopenblas.so.0", "openblas"), Library("/v/libmkl_rt.so.3", "mkl")


def row(
    speed: float = 1.0,
    *,
    kernels: str = "",
    threads: int = 1,
    sgemv: float = 0.1,
    steady: bool = True,
    even: bool = True,
    library: Library = OPENBLAS,
) -> Measured:
    seconds = {rows: exactly(rows / speed) for rows in WEIGHTS}
    sgemv_span = exactly(1.0 / (sgemv * speed))
    return Measured(library, kernels, threads, seconds, sgemv_span, steady, even)


def exactly(seconds: float) -> TimeRange:
    return TimeRange(seconds, seconds, seconds)


BASE = row()


def test_what_is_not_clearly_faster_leaves_the_library_to_itself_on_one_thread() -> None:
    chosen = choose([BASE, row(1.03, kernels="Haswell"), row(1.04, threads=2)], "exact")
    assert chosen == Choice(OPENBLAS, "", 1, "sgemm", tuple((rows, 1.0) for rows in WEIGHTS))


def test_the_fastest_kernels_and_threads_are_taken_and_the_gain_is_told() -> None:
    table = [BASE, row(1.2, kernels="SkylakeX"), row(1.5, kernels="SkylakeX", threads=2)]
    chosen = choose(table, "exact")
    assert chosen is not None and (chosen.kernels, chosen.threads) == ("SkylakeX", 2)
    assert dict(chosen.gains)[16] == pytest.approx(1.5)


def test_threads_that_change_bits_are_taken_only_when_fast_is_asked_for() -> None:
    table = [BASE, row(1.8, threads=2, steady=False)]
    exact, fast = choose(table, "exact"), choose(table, "fast")
    assert exact is not None and exact.threads == 1
    assert fast is not None and fast.threads == 2


def test_one_row_goes_through_sgemv_only_when_fast_is_asked_for_and_it_pays() -> None:
    quick = row(sgemv=3.0)
    ways = [
        choose([quick], "exact"),
        choose([quick], "fast"),
        choose([row(sgemv=1.01)], "fast"),
        choose([quick], "fast", can_interpose=False),
    ]
    assert [way.one_row for way in ways if way] == ["sgemm", "sgemv", "sgemm", "sgemm"]


def test_another_library_is_exact_only_where_one_row_is_what_it_is_among_many() -> None:
    table = [BASE, row(2.0, library=MKL, even=False)]
    exact, fast = choose(table, "exact"), choose(table, "fast", can_interpose=False)
    assert exact is not None and exact.library == OPENBLAS
    assert fast is not None and fast.library == MKL
    even = choose([BASE, row(2.0, library=MKL)], "exact")
    assert even is not None and even.library == MKL


def test_a_number_of_threads_is_taken_as_it_is() -> None:
    table = [BASE, row(1.5, threads=2), row(1.4, kernels="Haswell"), row(4.0, threads=4)]
    chosen = choose(table, "exact", 3)
    assert chosen is not None and (chosen.kernels, chosen.threads) == ("", 3)
    one = choose(table, "exact", 1)
    assert one is not None and (one.kernels, one.threads) == ("Haswell", 1)


def test_nothing_is_chosen_from_nothing() -> None:
    assert choose([], "fast") is None


speeds = st.floats(0.2, 8.0)
tables = st.lists(
    st.builds(
        row,
        speeds,
        kernels=st.sampled_from(["", "Haswell", "SkylakeX"]),
        threads=st.sampled_from([1, 2, 8]),
        sgemv=speeds,
        steady=st.booleans(),
        even=st.booleans(),
        library=st.sampled_from([OPENBLAS, MKL]),
    ),
    max_size=12,
).map(lambda rows: [BASE, *rows])


@given(tables)
def test_exact_is_never_unsteady_and_fast_is_never_much_slower_than_it(
    table: list[Measured],
) -> None:
    exact, fast = choose(table, "exact"), choose(table, "fast")
    assert exact is not None and fast is not None
    taken = [
        one for one in table
        if (one.library, one.kernels, one.threads)
        == (exact.library, exact.kernels, exact.threads)
    ]  # fmt: skip
    assert exact.threads == 1 or any(one.steady for one in taken)
    assert exact.library == OPENBLAS or any(one.even for one in taken)
    assert exact.one_row == "sgemm"
    assert dict(exact.gains)[256] >= 1.0 or taken[0] is BASE
    product = 1.0
    for rows, weight in WEIGHTS.items():
        product *= (dict(fast.gains)[rows] / dict(exact.gains)[rows]) ** weight
    assert product > 1 / CLEARLY - 1e-9


def ranged(speed: float, share: float, **more: object) -> Measured:
    """A measurement whose times are uncertain by this share."""
    made = row(speed, **more)  # type: ignore[arg-type]
    spans = {
        rows: TimeRange(span.low_s / (1 + share), span.median_s, span.high_s * (1 + share))
        for rows, span in made.seconds.items()
    }
    return replace(made, seconds=spans)


ranged_tables = st.lists(
    st.builds(
        ranged,
        speeds,
        st.floats(0.0, 0.5),
        kernels=st.sampled_from(["", "Haswell", "SkylakeX"]),
        threads=st.sampled_from([1, 2, 8]),
        sgemv=speeds,
        steady=st.booleans(),
        even=st.booleans(),
        library=st.sampled_from([OPENBLAS, MKL]),
    ),
    max_size=12,
    unique_by=lambda made: (made.library, made.kernels, made.threads),
).map(
    lambda rows: [
        BASE,
        *(r for r in rows if (r.library, r.kernels, r.threads) != (OPENBLAS, "", 1)),
    ]
)
parities = st.sampled_from(["exact", "fast"])


def bounds(choice: Choice, table: list[Measured]) -> tuple[float, float]:
    """The least and the most weighted speed of a choice."""
    (made,) = [
        r for r in table
        if (r.library, r.kernels, r.threads) == (choice.library, choice.kernels, choice.threads)
    ]  # fmt: skip
    spans = made.seconds if choice.one_row == "sgemm" else {**made.seconds, 1: made.sgemv}
    least = most = 1.0
    for rows, weight in WEIGHTS.items():
        base_s = table[0].seconds[rows].median_s
        least *= (base_s / spans[rows].high_s) ** weight
        most *= (base_s / spans[rows].low_s) ** weight
    return least, most


@given(ranged_tables, parities)
def test_a_second_look_at_the_same_measurement_changes_nothing(
    table: list[Measured], parity: Parity
) -> None:
    chosen = choose(table, parity)
    assert chosen is not None and choose(table, parity, in_force=chosen) == chosen


@given(ranged_tables, ranged_tables, parities)
def test_a_choice_in_force_stays_unless_another_is_better_beyond_both_ranges(
    before: list[Measured], table: list[Measured], parity: Parity
) -> None:
    held, fresh = choose(before, parity), choose(table, parity)
    assert held is not None and fresh is not None
    chosen = choose(table, parity, in_force=held)
    assert chosen is not None
    same = [chosen.library, chosen.kernels, chosen.threads, chosen.one_row]
    if same != [held.library, held.kernels, held.threads, held.one_row]:
        assert chosen == fresh, "what is not in force is what a first measurement would choose"
    elif chosen != fresh:
        assert bounds(chosen, table)[1] >= bounds(fresh, table)[0]


def test_a_lucky_run_does_not_win() -> None:
    steady, lucky = ranged(1.2, 0.01, kernels="Haswell"), ranged(1.4, 0.4, kernels="SkylakeX")
    chosen = choose([BASE, lucky, steady], "exact")
    assert chosen is not None and chosen.kernels == "Haswell"


def test_an_unlucky_run_does_not_lose_to_an_equally_fast_rival() -> None:
    table = [ranged(1.0, 0.1), ranged(1.03, 0.01, kernels="Haswell")]
    chosen = choose(table, "exact")
    assert chosen is not None and not chosen.kernels


def test_kernels_in_force_stay_where_a_rival_is_hardly_better() -> None:
    rival = ranged(1.30, 0.05, kernels="Haswell")
    before = [BASE, ranged(1.60, 0.05, kernels="SkylakeX")]
    table = [BASE, rival, ranged(1.25, 0.05, kernels="SkylakeX")]
    held, fresh = choose(before, "exact"), choose(table, "exact")
    kept = choose(table, "exact", in_force=held)
    assert held is not None and fresh is not None and kept is not None
    assert (held.kernels, fresh.kernels, kept.kernels) == ("SkylakeX", "Haswell", "SkylakeX")
    changed = choose([BASE, ranged(1.6, 0.02, kernels="Haswell"), table[2]], "exact", in_force=held)
    assert changed is not None and changed.kernels == "Haswell"


@given(st.lists(st.floats(1e-6, 1.0), max_size=40))
def test_a_range_has_the_median_in_it_and_ignores_the_extremes(samples: list[float]) -> None:
    span = span_of([samples])
    assert (span is None) == (len(samples) < LEAST_SAMPLES)
    if span is not None:
        ordered = sorted(samples)
        assert span.low_s <= span.median_s <= span.high_s
        assert len(samples) < 11 or (span.low_s >= ordered[2] and span.high_s <= ordered[-3])


def test_a_range_reaches_to_the_median_of_each_round() -> None:
    rounds = [[1.0] * 3, [2.0] * 9, [4.0] * 3, []]
    assert span_of(rounds) == TimeRange(1.0, 2.0, 4.0)
    assert span_of([[1.0] * 2, [2.0] * 2]) is None


def test_only_kernels_that_the_processor_can_run_are_tried() -> None:
    haswell = {"avx2", "fma"}
    skylake = haswell | {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"}
    assert kernels_for({"sse2", "avx"}) == []
    assert kernels_for(haswell) == ["Haswell"]
    assert kernels_for(skylake) == ["Haswell", "SkylakeX"]
    assert kernels_for(skylake | {"avx512_bf16"}) == ["Haswell", "SkylakeX", "Cooperlake"]


@given(st.integers(1, 512))
def test_one_thread_and_all_cores_are_always_measured(cores: int) -> None:
    counts = thread_counts(cores)
    assert counts[0] == 1 and counts[-1] == cores and len(counts) < 12


def test_a_library_is_told_its_kernels_and_threads_by_its_own_variables() -> None:
    plain = Choice(OPENBLAS)
    assert variables(plain) == {"LD_PRELOAD": OPENBLAS.path, "OPENBLAS_NUM_THREADS": "1"}
    many = variables(replace(plain, kernels="SkylakeX", threads=2), "/s/one-row-1.so")
    assert many["LD_PRELOAD"] == f"/s/one-row-1.so:{OPENBLAS.path}"
    assert many["OPENBLAS_CORETYPE"] == "SkylakeX" and many["OPENBLAS_NUM_THREADS"] == "2"
    ticks = 2 ** int(many["OPENBLAS_THREAD_TIMEOUT"])
    assert 10e-3 < ticks / 3e9 < 1.0, "from one product of a step to the next, and soon at rest"
    mkl = variables(Choice(MKL, threads=2))
    assert mkl["MKL_NUM_THREADS"] == "2" and mkl["MKL_INTERFACE_LAYER"] == "LP64"
    assert not any(name.startswith("OPENBLAS") for name in mkl)
