"""When other nodes are asked for KV, and how long a row waits for it."""

from __future__ import annotations

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from bus.models.kv import DiskReport, DiskRun, RunNews, TokenChain, shared_blocks, short_hashes
from bus.models.kv.token_chain import SHORT_BYTES
from bus.wire.ids import RequestId
from runner.schedule import RowKey, ScheduleSettings
from runner.schedule.prefixes import DiskIndex, RunSeeks
from tests.harness.engine import facts
from tests.harness.scheduling import Loop, prepared

LEAST = 128
What = Literal["coming", "moved", "none", "dearer", "failed"]
TOKENS = [(at * 7) % 61 + 2 for at in range(400)]


def seeks_of(**parts: bool) -> RunSeeks:
    return RunSeeks(LEAST, is_on=parts.get("is_on", True))


def asks(seeks: RunSeeks, tokens: list[int], now: float, *, have: int = 0, s: float = 8.0) -> bool:
    chain = TokenChain(tokens)

    def prefill_s(length: int) -> float:
        return s * (length - have) / (len(tokens) - have)

    return seeks.waits(chain, "", have, prefill_s, 1e9, now)


def news(
    tokens: list[int],
    what: Literal["coming", "moved", "none", "dearer", "failed"],
    wait_s: float = 0,
) -> RunNews:
    return RunNews(TokenChain(tokens).run_name(len(tokens)), what, wait_s, 100)


def test_a_row_waits_for_the_answer_then_for_the_copy_then_for_the_file() -> None:
    seeks = seeks_of()
    assert asks(seeks, TOKENS, 10.0)
    (question,) = seeks.take_questions()
    assert question.saves_s[-1] == 8.0 and len(question.hashes) == SHORT_BYTES * (400 // 64)
    assert asks(seeks, TOKENS, 11.0) and not seeks.take_questions(), "asked once"
    assert not seeks.take(news(TOKENS, "coming", 3.0), 11.4)
    assert asks(seeks, TOKENS, 14.0) and seeks.wake_at() == 14.4
    assert seeks.take(news(TOKENS, "moved"), 14.2)
    assert asks(seeks, TOKENS, 14.3)
    seeks.note_file(14.3)
    assert not asks(seeks, TOKENS, 14.3) and seeks.wake_at() is None
    assert (seeks.figures.runs, seeks.figures.bytes) == (1, 100)


def test_a_row_without_an_answer_starts_soon_and_is_not_asked_for_again() -> None:
    seeks = seeks_of()
    assert asks(seeks, TOKENS, 0.0, s=2.0) and asks(seeks, TOKENS, 0.49, s=2.0)
    assert not asks(seeks, TOKENS, 0.5, s=2.0)
    seeks.expire(0.5)
    seeks.take_questions()
    assert not asks(seeks, TOKENS, 30.0) and not seeks.questions
    assert asks(seeks, TOKENS, 61.0)


def test_refusals_are_counted_and_end_the_wait() -> None:
    for what, expected in (("none", (0, 0)), ("dearer", (1, 0)), ("failed", (0, 1))):
        seeks = seeks_of()
        assert asks(seeks, TOKENS, 0.0)
        seeks.take(news(TOKENS, what), 0.1)
        assert not asks(seeks, TOKENS, 0.1)
        assert (seeks.figures.dearer, seeks.figures.failed) == expected


def test_short_prompts_cheap_prompts_and_what_is_here_ask_nobody() -> None:
    assert not asks(seeks_of(), TOKENS[: LEAST - 1], 0.0)
    assert not asks(seeks_of(), TOKENS, 0.0, s=0.1)
    assert not asks(seeks_of(), TOKENS, 0.0, have=400 - LEAST + 1)
    assert not asks(seeks_of(is_on=False), TOKENS, 0.0)


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 3)), max_size=30))
def test_no_row_waits_longer_than_computing_takes(steps: list[tuple[int, float]]) -> None:
    """Whatever the answers say, and whenever they come."""
    seeks, now = seeks_of(), 0.0
    since: float | None = None
    for number, pause_s in steps:
        now += pause_s
        waits = asks(seeks, TOKENS, now, s=4.0)
        if waits and since is None:
            since = now
        elif not waits:
            since = None
            seeks.expire(now)
        assert since is None or now - since < 4.0
        if number < 5:
            what = (news(TOKENS, "coming", 99.0), news(TOKENS, "moved"), news([1], "failed"))
            seeks.take(what[number % 3], now)
        assert len(seeks.open) <= 2


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_the_blocks_in_common_are_those_of_the_tokens(same: int, more: int, other: int) -> None:
    one = [*range(same), *(7 for _ in range(more))]
    two = [*range(same), *(9 for _ in range(other))]
    shared = shared_blocks(short_hashes(TokenChain(one)), short_hashes(TokenChain(two)))
    assert shared == (same if more and other else min(len(one), len(two))) // 64
    apart = short_hashes(TokenChain(two, seed=b"key"))
    assert shared_blocks(short_hashes(TokenChain(one)), apart) == 0


def test_a_copied_file_is_looked_for_and_read() -> None:
    """Through the scheduler: the row waits until the file of another node is found and read."""
    loop = Loop(facts(disk_tokens=LEAST), ScheduleSettings())
    disk = loop.scheduler.disk
    assert disk is not None
    disk.seeks.is_on = True
    loop.scheduler.forget_costs()
    loop.submit(prepared("a", TOKENS, max_tokens=2))
    loop.turn()
    (question,) = disk.seeks.take_questions()
    key = RowKey(RequestId("a"), 0)
    assert key not in loop.ends and disk.seeks.wake_at() is not None
    disk.take_news(RunNews(question.name, "coming", 0.3), loop.now)
    disk.take_news(RunNews(question.name, "moved", size_bytes=4_000), loop.now)
    assert {order.what for order in disk.orders(loop.now)} == {"look"}
    run = DiskRun(question.name, b"", TokenChain(TOKENS).first(400), "", 4_000)
    disk.take([DiskReport("found", run)], loop.now)
    loop.turn()
    assert [order.what for order in disk.orders(loop.now)] == ["read"]
    loop.engine.on_disk[run.name] = list(TOKENS)  # type: ignore[arg-type]
    disk.take([DiskReport("read", run, 0.01)], loop.now)
    loop.run()
    assert loop.ends[key].cost.cached_tokens == 399  # type: ignore[union-attr]
    assert disk.counts().moves.runs == 1 and isinstance(disk, DiskIndex)
