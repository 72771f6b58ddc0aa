"""The figures of a bench, from instants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.cli.verbs.models.bench_math import Run, TimedAnswer, percentiles, spread, summary


def answered(sent_at: float = 0.0) -> TimedAnswer:
    """First token after 0.5 s, then one each 0.1 s, five in all."""
    instants = tuple(sent_at + 0.5 + 0.1 * n for n in range(5))
    return TimedAnswer(sent_at, instants, instants[-1], prompt_tokens=100, tokens=5)


def test_one_answer_in_figures() -> None:
    one = answered()
    assert one.ttft_s == pytest.approx(0.5)
    assert one.gaps_s == pytest.approx([0.1] * 4)
    assert one.decode_per_s == pytest.approx(10.0)
    assert one.prefill_per_s == pytest.approx(200.0)


def test_prefill_is_of_what_was_computed() -> None:
    assert replace(answered(), cached_tokens=60).prefill_per_s == pytest.approx(80.0)


def test_the_aggregate_is_all_tokens_over_the_wall_time() -> None:
    run = Run((answered(0.0), answered(0.1)))
    assert run.wall_s == pytest.approx(1.0)
    assert run.per_s == pytest.approx(10.0)


def test_an_answer_without_tokens_has_no_speed_and_breaks_nothing() -> None:
    empty = TimedAnswer(1.0, (), 2.0, prompt_tokens=10, tokens=0)
    assert (empty.ttft_s, empty.gaps_s, empty.decode_per_s) == (1.0, [], 0.0)
    found = summary([Run((empty,))])
    assert found["itl_ms"] == {"p50": 0.0, "p95": 0.0, "p99": 0.0, "mean": 0.0, "std": 0.0}


def test_spread_is_the_sample_standard_deviation() -> None:
    assert spread([2.0, 4.0]) == {"mean": 3.0, "std": pytest.approx(2**0.5)}
    assert spread([5.0]) == {"mean": 5.0, "std": 0.0}


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(1, 101)]
    found = percentiles(values)
    assert (found["p50"], found["p95"], found["p99"]) == (50.0, 95.0, 99.0)
    assert percentiles([7.0])["p99"] == 7.0
    assert percentiles([2.0, 4.0])["std"] == pytest.approx(2**0.5)


def test_a_summary_counts_what_it_is_made_of() -> None:
    found = summary([Run((answered(), answered())), Run((answered(), answered()))])
    assert (found["runs"], found["answers"], found["tokens"]) == (2, 4, 20)
    assert (found["tokens_least"], found["tokens_most"], found["cached_tokens"]) == (5, 5, 0)
    assert found["aggregate_tokens_per_s"]["std"] == pytest.approx(0.0)
