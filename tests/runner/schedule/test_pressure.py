"""Memory that is measured too large ends the youngest row of the lowest class, one at a time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.ids import RequestId
from runner.engine import MemoryLook
from runner.schedule.pressure import Pressure
from runner.schedule.rows import RowFailed, RowFinished, RowKey
from runner.schedule.table import ScheduleSettings
from tests.harness.engine import facts, whole_output
from tests.harness.scheduling import Loop, prepared

LOOK = 16


def key(name: str, choice: int = 0) -> RowKey:
    return RowKey(RequestId(name), choice)


def prompt(length: int, salt: int = 1) -> list[int]:
    return [(salt * 31 + position * 7) % 61 + 2 for position in range(length)]


def looked(loop: Loop, used_bytes: int, rank: int = 0) -> None:
    """Tell the scheduler of a rank that may take 100 bytes, measured now."""
    step = loop.engine.step - loop.scheduler.unread
    loop.scheduler.pressure.take(rank, MemoryLook(step, used_bytes, 100))


def steps(loop: Loop, count: int) -> None:
    until = len(loop.plans) + count
    while len(loop.plans) < until and loop.turn():
        pass


def test_the_youngest_row_of_the_lowest_class_ends_with_its_text_and_others_go_on() -> None:
    loop = Loop(facts())
    for name, priority in (("old low", 50), ("urgent", 1), ("young low", 50), ("normal", 10)):
        loop.submit(prepared(name, prompt(9), max_tokens=200, priority=priority))
        steps(loop, 3)
    looked(loop, 101)
    steps(loop, 8)
    assert list(loop.ends) == [key("young low")]
    end = loop.ends[key("young low")]
    assert isinstance(end, RowFinished) and end.finish == "memory_pressure"
    assert "rank 0" in end.why
    made = loop.made[key("young low")]
    assert made == whole_output(100, prompt(9), len(made), frozenset()) and len(made) >= 3
    looked(loop, 100)
    loop.run()
    for name in ("old low", "urgent", "normal"):
        assert loop.made[key(name)] == whole_output(100, prompt(9), 200, frozenset())
    assert loop.scheduler.load().memory_ends == 1


def test_kept_prefixes_go_before_a_row_does_and_none_is_kept_meanwhile() -> None:
    loop = Loop(facts())
    loop.submit(prepared("kept", prompt(300), max_tokens=4))
    loop.run()
    assert loop.scheduler.load().prefix_bytes
    loop.submit(prepared("a", prompt(300, salt=2), max_tokens=200))
    steps(loop, 20)
    looked(loop, 101)
    before = len(loop.plans)
    steps(loop, 40)
    assert sum(len(plan.evict) for plan in loop.plans[before:]) > 0
    assert not loop.ends.keys() & {key("a")}
    assert loop.scheduler.load().prefix_bytes == 0
    looked(loop, 101)
    steps(loop, 3)
    assert key("a") in loop.ends
    assert loop.scheduler.load().prefix_bytes == 0


def test_what_was_measured_before_the_last_end_took_effect_ends_no_other() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=8))
    for number in range(6):
        loop.submit(prepared(f"r{number}", prompt(9), max_tokens=200))
    steps(loop, 20)
    looked(loop, 101)
    steps(loop, 1)
    for _ in range(6):  # as many steps as there were rows: a hole in the batch stays so long
        looked(loop, 101)
        steps(loop, 1)
    assert len(loop.ends) == 1
    steps(loop, 3)
    looked(loop, 101)
    steps(loop, 1)
    assert list(loop.ends) == [key("r5"), key("r4")]


def test_no_row_enters_while_memory_is_short_and_all_do_afterwards() -> None:
    loop = Loop(facts())
    loop.submit(prepared("a", prompt(9), max_tokens=300))
    loop.submit(prepared("b", prompt(9), max_tokens=300))
    steps(loop, 20)
    looked(loop, 101, rank=1)
    steps(loop, 1)
    assert list(loop.ends) == [key("b")]
    loop.submit(prepared("waits", prompt(9), max_tokens=5, priority=0))
    steps(loop, 20)
    assert key("waits") not in loop.made
    looked(loop, 100, rank=0)  # another rank has room
    steps(loop, 20)
    assert key("waits") not in loop.made
    looked(loop, 99, rank=1)
    loop.run()
    assert len(loop.made[key("waits")]) == 5
    assert len(loop.made[key("a")]) == 300


def test_one_of_several_choices_ends_without_a_word_and_leaves_the_others_alone() -> None:
    loop = Loop(facts())
    loop.submit(prepared("two", prompt(3000), max_tokens=50, n=2))
    steps(loop, 2)
    looked(loop, 101)
    steps(loop, 2)
    ends = list(loop.ends.values())
    assert [(end.key, end.finish) for end in ends if isinstance(end, RowFinished)] == [
        (key("two", 0), "memory_pressure")
    ]
    looked(loop, 99)
    loop.run()
    assert key("two", 0) not in loop.made
    assert len(loop.made[key("two", 1)]) == 50


def test_a_request_that_has_said_nothing_fails_with_the_figures() -> None:
    loop = Loop(facts())
    loop.submit(prepared("alone", prompt(3000), max_tokens=50))
    steps(loop, 2)
    looked(loop, 2_000_000_000)
    steps(loop, 2)
    end = loop.ends[key("alone")]
    assert isinstance(end, RowFailed) and end.reason == "memory_pressure"
    assert "rank 0 uses 2.000 GB" in end.message
    loop.run()
    assert loop.scheduler.is_empty


class TestPressure:
    def test_the_rank_that_is_furthest_over_is_named(self) -> None:
        pressure = Pressure()
        pressure.take(0, MemoryLook(16, 110, 100))
        pressure.take(2, MemoryLook(16, 9, 4))
        assert (pressure.due() or "").startswith("rank 2 uses")
        pressure.take(2, MemoryLook(32, 4, 4))
        assert (pressure.due() or "").startswith("rank 0 uses")
        pressure.take(0, MemoryLook(32, 100, 100))
        assert pressure.due() is None and not pressure.over


@settings(max_examples=150, deadline=None)
@given(
    asks=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 120), st.sampled_from([1, 10, 50])),
        min_size=1,
        max_size=10,
    ),
    room=st.integers(60, 1200),
    ranks=st.integers(1, 3),
    each_bytes=st.integers(20, 200),
)
def test_rows_end_only_while_memory_is_short_and_only_the_last_in_order(
    asks: list[tuple[int, int, int]], room: int, ranks: int, each_bytes: int
) -> None:
    """Rows take `each_bytes` and one a token, whatever the formula says; each rank's limit is
    `room` or more."""
    loop = Loop(facts(), ScheduleSettings(max_rows=6, max_waiting=100))
    for number, (length, most, priority) in enumerate(asks):
        loop.submit(prepared(f"r{number}", prompt(length), max_tokens=most, priority=priority))
    table = loop.scheduler._table  # pyright: ignore[reportPrivateUsage]
    over_since: int | None = None
    looked_at = 0
    for _ in range(5000):
        before, running = dict(loop.ends), [r for r in table.live.values() if r.status != "ended"]
        plans = len(loop.plans)
        went_on = loop.turn()
        for name in loop.ends.keys() - before.keys():
            end = loop.ends[name]
            short = isinstance(end, RowFailed) or end.finish == "memory_pressure"
            if short:
                assert over_since is not None, "no row ends for memory while there is enough"
                others = [row for row in running if row.key != name]
                ended = next(row for row in running if row.key == name)
                assert all(other.order < ended.order for other in others)
        done = table.step - loop.scheduler.unread
        if done - looked_at >= LOOK:
            looked_at = done
            used = sum(each_bytes + row.length for row in table.live.values())
            for rank in range(ranks):
                look = MemoryLook(done, used, room + 50 * rank)
                loop.scheduler.pressure.take(rank, look)
            over_since = done if used > room else None
        if not went_on and len(loop.plans) == plans and loop.scheduler.is_empty:
            break
    assert loop.scheduler.is_empty, "all rows end, whatever is measured"
    for number, (length, most, _) in enumerate(asks):
        said = loop.made.get(key(f"r{number}"), [])
        end = loop.ends[key(f"r{number}")]
        assert said == whole_output(100, prompt(length), len(said), frozenset())
        if isinstance(end, RowFinished) and end.finish == "length":
            assert len(said) == most
