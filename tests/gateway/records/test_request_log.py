"""The request log's questions and bounds, against what is counted by hand."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.records.request_log import (
    COLUMNS,
    MOST_GROUPS,
    NAME_CHARS,
    LogBounds,
    RecentQuery,
    RequestRow,
    beyond,
    inserted,
    pruned,
    recent,
    shown,
    stats,
    stats_of,
)
from gateway.records.schema import statements_from
from gateway.records.statements import Statement
from tests.harness.records_writer import row

NO_BOUNDS = LogBounds(rows=10**6, bytes=1 << 30, age_s=1e9)


class Base:
    """The log in memory."""

    def __init__(self, rows: Sequence[RequestRow] = ()) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        for statement in statements_from(0):
            self.connection.execute(statement)
        for one in rows:
            self.run(inserted(one))

    def run(self, statement: Statement) -> list[Any]:
        return self.connection.execute(statement.text, statement.values).fetchall()

    def recent(self, **query: Any) -> list[str]:
        return [shown(values)["request"] for values in self.run(recent(RecentQuery(**query)))]

    def stats(self, window_s: float, now_s: float) -> dict[str, Any]:
        question = stats(window_s, now_s)
        return stats_of(question, [self.run(one) for one in question.statements])

    def prune(self, bounds: LogBounds, now_s: float) -> None:
        for statement in pruned(bounds, now_s):
            self.run(statement)

    def tally(self) -> tuple[int, int]:
        return self.run(Statement("SELECT rows, bytes FROM request_tally"))[0]

    def counted(self) -> tuple[int, int]:
        return self.run(Statement("SELECT count(*), total(row_bytes) FROM request"))[0]

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def base() -> Iterator[Base]:
    with closing(Base()) as made:
        yield made


def test_a_row_is_read_as_it_was_written(base: Base) -> None:
    whole = row(
        "r", model="m", client="c", key="k", priority=5, streamed=True, instance="i", node="n",
        load_s=0.5, queue_s=0.25, prefill_s=0.1, decode_s=2.0, ttft_s=0.75, prompt_tokens=7,
        cached_tokens=3, completion_tokens=9, finish="length, stop", error=None,
    )  # fmt: skip
    base.run(inserted(whole))
    assert shown(base.run(recent(RecentQuery()))[0]) == {
        name: getattr(whole, name) for name in COLUMNS
    }


def test_names_are_cut_and_half_characters_do_no_harm(base: Base) -> None:
    base.run(inserted(row("r", client="x" * 5000, model="a\ud800b")))
    found = shown(base.run(recent(RecentQuery()))[0])
    assert found["client"] == "x" * NAME_CHARS
    assert found["model"] == "a?b"


def test_the_last_come_first_by_when_they_were_written_whatever_the_clock_says() -> None:
    rows = [row("old", ended_at_s=100.0), row("later", ended_at_s=50.0)]
    with closing(Base(rows)) as base:
        assert base.recent() == ["later", "old"]


def test_recent_requests_are_chosen_by_model_client_errors_and_time() -> None:
    rows = [
        row("a", model="m", client="c", ended_at_s=1.0),
        row("b", model="m", error="queue_full", ended_at_s=2.0),
        row("c", model="o", client="c", error="deadline_exceeded", ended_at_s=3.0),
    ]
    with closing(Base(rows)) as base:
        assert base.recent(model="m") == ["b", "a"]
        assert base.recent(client="c") == ["c", "a"]
        assert base.recent(errors_only=True) == ["c", "b"]
        assert base.recent(errors_only=True, model="m") == ["b"]
        assert base.recent(since_s=2.0) == ["c", "b"]
        assert base.recent(limit=1) == ["c"]


NAMES = st.sampled_from(["m", "o", None])
ROWS = st.builds(
    row,
    st.just("r"),
    ended_at_s=st.sampled_from([0.0, 4.0, *map(float, range(5, 16)), 16.0]),
    kind=st.sampled_from(["generate"] * 4 + ["embed", "ask"]),
    model=NAMES,
    client=NAMES,
    seconds=st.integers(0, 9).map(float),
    ttft_s=st.none() | st.integers(0, 9).map(float),
    queue_s=st.none() | st.floats(0, 9),
    decode_s=st.none() | st.just(0.0) | st.floats(0.5, 9),
    prompt_tokens=st.integers(0, 50),
    completion_tokens=st.integers(0, 50),
    error=st.sampled_from([None] * 4 + ["queue_full", "runner_lost"]),
)


def nearest_rank(values: Sequence[float], percent: int) -> float:
    """The smallest value that at least `percent` of a hundred values do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100 - 1e-9) - 1]


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, max_size=20) | st.lists(ROWS, min_size=40, max_size=70))
def test_statistics_are_what_is_counted_by_hand(rows: list[RequestRow]) -> None:
    with closing(Base(rows)) as base:
        found = base.stats(10.0, 15.0)
    inside = [one for one in rows if 5.0 <= one.ended_at_s <= 15.0 and one.kind != "ask"]
    assert found["requests"] == len(inside)
    assert found["errors"] == dict(Counter(one.error for one in inside if one.error is not None))
    for group, told_groups in (("model", found["models"]), ("client", found["clients"])):
        by_name: dict[str | None, list[RequestRow]] = defaultdict(list)
        for one in inside:
            by_name[getattr(one, group)].append(one)
        assert {one["name"] for one in told_groups} == set(by_name)
        for one in told_groups:
            mine = by_name[one["name"]]
            well = [r for r in mine if r.error is None]
            assert (one["requests"], one["finished"]) == (len(mine), len(well))
            assert one["prompt_tokens"] == sum(r.prompt_tokens for r in mine)
            assert one["errors"] == dict(Counter(r.error for r in mine if r.error is not None))
            speeds = [
                (r.completion_tokens - 1) / r.decode_s
                for r in well
                if r.decode_s and r.completion_tokens > 1
            ]
            measured = {
                "seconds": [r.seconds for r in well],
                "ttft_s": [r.ttft_s for r in well if r.ttft_s is not None],
                "queue_s": [r.queue_s for r in well if r.queue_s is not None],
                "decode_tokens_per_s": speeds,
            }
            for name, values in measured.items():
                wanted = {f"p{p}": nearest_rank(values, p) for p in (50, 95)} if values else None
                assert one[name] == wanted, name


@pytest.mark.parametrize("count", [1, 2, 3, 10, 19, 20, 21, 40, 60, 99, 100, 101])
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(count: int) -> None:
    values = [float(value) for value in range(count, 0, -1)]
    with closing(Base([row("r", model="m", ttft_s=value) for value in values])) as base:
        (found,) = base.stats(10.0, 5.0)["models"]
    # of the values 1 to n it is as great as its rank
    assert found["ttft_s"] == {"p50": -(-count * 50 // 100), "p95": -(-count * 95 // 100)}


def test_statistics_tell_of_so_many_clients_those_with_the_most_requests() -> None:
    rows = [row("r", client=f"c{number}") for number in range(MOST_GROUPS + 50)]
    rows += [row("r", client="often", error="queue_full"), row("r", client="often")]
    with closing(Base(rows)) as base:
        clients = base.stats(10.0, 5.0)["clients"]
    assert len(clients) == MOST_GROUPS
    assert clients[0]["name"] == "often" and clients[0]["errors"] == {"queue_full": 1}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 150)), max_size=60),
    st.integers(0, 40),
    st.integers(0, 12_000),
    st.integers(0, 40),
)
def test_pruning_keeps_the_latest_rows_within_every_bound(
    made: list[tuple[int, int]], most_rows: int, most_bytes: int, age_s: int
) -> None:
    rows = [
        row(f"{number:04}", ended_at_s=float(at), client="x" * chars)
        for number, (at, chars) in enumerate(made)
    ]
    with closing(Base(rows)) as base:
        base.prune(LogBounds(rows=most_rows, bytes=most_bytes, age_s=float(age_s)), 30.0)
        kept = base.run(Statement("SELECT request, ended_at_s, row_bytes FROM request ORDER BY id"))
        assert base.tally() == base.counted()
    young = [(f"{n:04}", at) for n, (at, _) in enumerate(made) if at >= 30 - age_s]
    assert len(kept) <= most_rows and sum(size for _, _, size in kept) <= most_bytes
    # no row went that had room: those kept are the last of those that are young enough
    assert [(name, at) for name, at, _ in kept] == young[len(young) - len(kept) :]
    if len(kept) < len(young) and len(kept) < most_rows:
        next_chars = made[int(young[len(young) - len(kept) - 1][0])][1]
        sizes = sum(size for _, _, size in kept)
        assert sizes + inserted(row("0000", client="x" * next_chars)).values[-1] > most_bytes  # type: ignore[index]


@pytest.mark.parametrize(
    ("bounds", "is_beyond"),
    [
        (LogBounds(rows=2, bytes=10_000, age_s=60.0), 0),
        (LogBounds(rows=1, bytes=10_000, age_s=60.0), 1),
        (LogBounds(rows=2, bytes=300, age_s=60.0), 1),
        (LogBounds(rows=2, bytes=10_000, age_s=5.0), 1),
    ],
)
def test_rows_beyond_any_bound_are_noticed(bounds: LogBounds, is_beyond: int) -> None:
    with closing(Base([row("a", ended_at_s=50.0), row("b", ended_at_s=60.0)])) as base:
        assert base.run(beyond(bounds, 60.0)) == [(is_beyond,)]
        base.prune(bounds, 60.0)
        assert base.run(beyond(bounds, 60.0)) == [(0,)]


def test_one_pruning_removes_some_and_the_next_ones_the_rest() -> None:
    with closing(Base([row("r") for _ in range(1500)])) as base:
        bounds = LogBounds(rows=10, bytes=1 << 30, age_s=1e9)
        left: list[int] = []
        for _ in range(4):
            base.prune(bounds, 5.0)
            left.append(base.tally()[0])
    assert left == [988, 476, 10, 10]


def test_rows_of_a_future_that_a_clock_once_said_are_in_no_window_and_are_bounded() -> None:
    rows = [row("wrong", ended_at_s=1e12), *(row("right", ended_at_s=50.0) for _ in range(5))]
    with closing(Base(rows)) as base:
        assert base.stats(100.0, 60.0)["requests"] == 5
        base.prune(LogBounds(rows=5, bytes=1 << 30, age_s=1e9), 60.0)
        assert base.recent() == ["right"] * 5
