"""A row that has thought for its budget is made to answer, at exactly that token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from hypothesis import example, given
from hypothesis import settings as checked
from hypothesis import strategies as st

from bus.wire.ids import TokenId
from runner.schedule import Placed, RowFinished, ScheduleSettings
from runner.text import PreparedRequest, ThinkingLimit
from runner.text.families import Family, Marks, ThinkingMeter
from runner.text.families.harmony import harmony
from runner.text.stops import automaton
from tests.harness.engine import facts, next_token
from tests.harness.scheduling import Loop, prepared
from tests.runner.schedule.test_scheduler import key, prompt

Opening = Literal["text", "reasoning", "header"]
MARKED = Family(Marks("<think>", "</think>"), None, None, None)
SAYS: dict[Family, tuple[str, ...]] = {
    MARKED: ("<think>", "</think>", "</th", "ink>", "\n\n"),
    harmony(): (
        "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "analysis", "final", "assistant",
    ),
}  # fmt: skip
"""What tokens of a family are made of, beside plain words."""
ENDINGS: dict[Family, tuple[TokenId, ...]] = {
    MARKED: (TokenId(2), TokenId(5)),
    harmony(): (TokenId(4), TokenId(3), TokenId(7), TokenId(1), TokenId(6), TokenId(2)),
}
"""The tokens, by these numbers from 1 on, that end thinking."""
FAMILIES = tuple(SAYS)


class Spelling:
    """A detokeniser whose token n says the n-th text of its family, again and again, with some
    words between."""

    held = False

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts

    def add(self, token: int) -> str:
        place = token % (len(self._texts) + 3) - 1
        return self._texts[place] if 0 <= place < len(self._texts) else "word "

    def flush(self) -> str:
        return ""


def meter(family: Family, opening: Opening, budget: int) -> ThinkingMeter:
    reader = family.reader(
        (), reads_thinking=True, reads_tools=False, opening=opening, stops=automaton(())
    )
    return ThinkingMeter(Spelling(SAYS[family]), reader, budget)


def limited(
    name: str, tokens: list[int], budget: int, family: Family, opening: Opening, **more: Any
) -> PreparedRequest:
    limit = ThinkingLimit(ENDINGS[family], lambda: meter(family, opening, budget))
    return replace(prepared(name, tokens, **more), limit=limit)


def wanted(
    seed: int, tokens: list[int], budget: int, family: Family, opening: Opening, most: int
) -> list[int]:
    """What the row says where each token is known before the next one is chosen."""
    made: list[int] = []
    counted = meter(family, opening, budget)
    forced: list[TokenId] = []
    while len(made) < most:
        if not forced and counted.is_due:
            forced = list(ENDINGS[family])
        made.append(forced.pop(0) if forced else next_token(seed, [*tokens, *made]))
        counted.take(TokenId(made[-1]))
    return made


ROWS = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.integers(0, 30),
        st.sampled_from(FAMILIES),
        st.sampled_from(("text", "reasoning", "header")),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=5,
)


@given(ROWS, st.integers(0, 3), st.booleans(), st.booleans())
@example([(5, 0, MARKED, "reasoning", 9)], 0, False, True)
@checked(max_examples=150, deadline=None)
def test_each_row_ends_its_thinking_at_its_budget_whoever_runs_beside_it(
    rows: list[tuple[int, int, Family, Opening, int]], free: int, is_tight: bool, ragged: bool
) -> None:
    """Steps ahead, preemption for memory and rows without a budget change no token."""
    settings = ScheduleSettings(headroom_tokens=4, prefix_bytes=0)
    loop = Loop(facts(kv_bytes=220 if is_tight else 1 << 20, batches_ragged=ragged), settings)
    for number, (length, budget, family, opening, most) in enumerate(rows):
        if family is MARKED and opening == "header":
            opening = "text"
        asked = limited(f"r{number}", prompt(length), budget, family, opening, max_tokens=most)
        loop.submit(asked)
    for number in range(free):
        loop.submit(prepared(f"free{number}", prompt(7), max_tokens=20))
    loop.run()
    for number, (length, budget, family, opening, most) in enumerate(rows):
        if family is MARKED and opening == "header":
            opening = "text"
        name = key(f"r{number}")
        assert isinstance(loop.ends[name], RowFinished)
        assert loop.made[name] == wanted(100, prompt(length), budget, family, opening, most)
    for number in range(free):
        tokens = prompt(7)
        for said in loop.made[key(f"free{number}")]:
            assert said == next_token(100, tokens)
            tokens = [*tokens, said]


@given(st.integers(0, 50), st.integers(0, 2**32))
@checked(max_examples=100, deadline=None)
def test_thinking_takes_its_budget_and_its_mark_at_most(budget: int, start: int) -> None:
    tokens = [start % 64, *prompt(3)]
    loop = Loop(facts())
    loop.submit(limited("a", tokens, budget, MARKED, "reasoning", max_tokens=80))
    loop.run()
    first = meter(MARKED, "reasoning", budget)
    thought = 0
    for token in loop.made[key("a")]:
        first.take(TokenId(token))
        thought += 1
        if not first.is_thinking:
            break
    assert thought <= budget + 1
    assert first.tokens == thought


@given(st.integers(0, 63), st.sampled_from(FAMILIES))
@checked(max_examples=60, deadline=None)
def test_where_thinking_ends_within_its_budget_nothing_is_said_for_the_model(
    start: int, family: Family
) -> None:
    tokens = [start, *prompt(3)]
    free = wanted(100, tokens, 10**9, family, "reasoning", 60)
    counted = meter(family, "reasoning", 10**9)
    for token in free:
        counted.take(TokenId(token))
    loop = Loop(facts())
    budget = counted.tokens + 1
    loop.submit(limited("a", tokens, budget, family, "reasoning", max_tokens=60))
    loop.run()
    assert loop.made[key("a")] == free
    assert not any(plan.forced for plan in loop.plans)


def test_a_step_is_planned_ahead_until_the_budget_is_near() -> None:
    loop = Loop(facts())
    loop.submit(limited("a", prompt(3), 30, MARKED, "reasoning", max_tokens=70))
    unread: list[int] = []
    loop.on_step = lambda: unread.append(loop.scheduler.unread)
    loop.run()
    assert unread[:28] == [1] * 28
    assert unread.count(0) <= 5


@given(st.data(), st.integers(0, 30), st.sampled_from(FAMILIES), st.integers(2, 60))
@checked(max_examples=100, deadline=None)
def test_a_row_that_goes_on_from_anywhere_ends_its_thinking_where_it_would_have(
    data: st.DataObject, budget: int, family: Family, most: int
) -> None:
    """Within its ending too: what is forced there is said to its end."""
    opening = data.draw(st.sampled_from(("text", "reasoning")))
    tokens = prompt(9)
    whole = wanted(100, tokens, budget, family, opening, most)
    cut = data.draw(st.integers(0, most - 1))
    loop = Loop(facts())
    asked = limited("a", tokens, budget, family, opening, max_tokens=most)
    made = [tuple(map(TokenId, whole[:cut]))]
    placed = loop.scheduler.submit(asked, seeds=[100], now=0.0, made=made)
    assert isinstance(placed, Placed)
    loop.run()
    assert loop.made.get(key("a"), []) == whole[cut:]
    end = loop.ends[key("a")]
    assert isinstance(end, RowFinished) and end.finish == "length"
    assert end.cost.completion_tokens == most
