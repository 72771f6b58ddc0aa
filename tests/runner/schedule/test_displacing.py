"""A full queue gives a request that has not begun back, for one that stands better."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.errors import Refusal
from bus.wire.ids import RequestId
from bus.wire.shares import AGED_S, Sharer, Shares, standing
from runner.schedule import Arrival, Placed, RowFinished, RowKey, ScheduleSettings
from tests.harness.engine import facts, whole_output
from tests.harness.scheduling import Loop, prepared

URGENT, HIGH, NORMAL, BATCH = 1, 5, 10, 50
ROWS, QUEUE = 2, 3
PROMPT = [3, 5, 7, 11]
ME: Sharer = ("", "me")


def ask(
    loop: Loop, name: str, priority: int = BATCH, tokens: int = 400, waited_s: float = 0.0
) -> Placed | Refusal:
    request = prepared(name, PROMPT, max_tokens=tokens, priority=priority)
    return loop.submit(request, sharer=(*ME, name), waited_s=waited_s, returns=True)


def full() -> Loop:
    """A runner of which batch requests have all rows and places, one client's."""
    loop = Loop(facts(), ScheduleSettings(max_rows=ROWS, max_waiting=QUEUE))
    for number in range(ROWS + QUEUE):
        assert isinstance(ask(loop, f"batch{number}"), Placed)
        loop.turn()
        loop.now += 0.1
    assert begun(loop) == {"batch0", "batch1"}
    return loop


def here(loop: Loop) -> set[str]:
    return set(loop.scheduler._table.requests)  # pyright: ignore[reportPrivateUsage]


def begun(loop: Loop) -> set[str]:
    rows = loop.scheduler._table.rows.values()  # pyright: ignore[reportPrivateUsage]
    return {row.key.request_id for row in rows if row.admitted_at is not None}


def test_the_youngest_that_has_not_begun_gives_its_place_to_an_urgent_one() -> None:
    loop = full()
    placed = ask(loop, "urgent", URGENT, tokens=5)
    assert placed == Placed(0, RequestId("batch4"))
    assert here(loop) == {"batch0", "batch1", "batch2", "batch3", "urgent"}
    loop.run()
    assert RowKey(RequestId("batch4"), 0) not in loop.ends, "it owes no end any more"
    ends = {key.request_id: end for key, end in loop.ends.items()}
    assert set(ends) == {"batch0", "batch1", "batch2", "batch3", "urgent"}
    assert all(isinstance(end, RowFinished) for end in ends.values())
    first = [loop.token_at[RowKey(RequestId(name), 0)][0] for name in ("urgent", "batch2")]
    assert first[0] < first[1]


def test_of_those_that_came_at_once_the_last_gives_way() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=ROWS, max_waiting=QUEUE))
    for number in range(ROWS + QUEUE):
        ask(loop, f"batch{number}")
    placed = ask(loop, "urgent", URGENT)
    assert isinstance(placed, Placed) and placed.displaced == "batch4"


@pytest.mark.parametrize("priority", [BATCH, BATCH + 1, 1000])
def test_one_of_equal_or_lower_priority_is_refused_as_ever(priority: int) -> None:
    loop = full()
    before = here(loop)
    refused = ask(loop, "more", priority)
    assert isinstance(refused, Refusal) and refused.reason == "queue_full"
    assert refused.position == QUEUE and refused.retry_after_s is not None
    assert here(loop) == before


def test_the_lowest_class_gives_way_before_a_younger_one_of_a_higher_class() -> None:
    loop = full()
    assert ask(loop, "normal", NORMAL) == Placed(0, RequestId("batch4"))
    assert ask(loop, "urgent", URGENT) == Placed(0, RequestId("batch3"))
    assert ask(loop, "urgent2", URGENT) == Placed(1, RequestId("batch2"))
    assert ask(loop, "urgent3", URGENT) == Placed(2, RequestId("normal"))
    assert isinstance(ask(loop, "urgent4", URGENT), Refusal), "what has begun goes on"
    assert here(loop) == {"batch0", "batch1", "urgent", "urgent2", "urgent3"}


def test_what_its_gateway_does_not_take_back_stays() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=ROWS, max_waiting=QUEUE))
    for number in range(ROWS + QUEUE):
        request = prepared(f"batch{number}", PROMPT, max_tokens=400, priority=BATCH)
        assert isinstance(loop.submit(request, sharer=(*ME, str(number))), Placed)
        loop.turn()
    assert isinstance(ask(loop, "urgent", URGENT), Refusal)
    assert len(here(loop)) == ROWS + QUEUE


def test_one_on_its_way_here_gives_its_place_like_one_that_is_here() -> None:
    loop = full()
    intake, now = loop.scheduler.intake, loop.now
    coming = Arrival(RequestId("urgent"), (*ME, "u"), URGENT, now)
    preparing = [Arrival(RequestId("late"), (*ME, "l"), BATCH, now, True)]
    assert intake.gives_place(coming, preparing, now) == "late"
    older = [Arrival(RequestId("older"), (*ME, "l"), BATCH, now - 9.0, True)]
    assert intake.gives_place(coming, older, now) == "batch4"


def test_who_has_less_than_a_share_keeps_the_place() -> None:
    """Urgent requests of one client take no place of another, who would have it back at once."""
    loop = Loop(facts(), ScheduleSettings(max_rows=ROWS, max_waiting=QUEUE))
    hog, other = ("", "hog"), ("", "other")
    for number in range(ROWS + QUEUE - 1):
        request = prepared(f"hog{number}", PROMPT, max_tokens=400, priority=NORMAL)
        loop.submit(request, sharer=hog, returns=True)
        loop.turn()
    request = prepared("other", PROMPT, max_tokens=400, priority=BATCH)
    assert isinstance(loop.submit(request, sharer=other, returns=True), Placed)
    urgent = prepared("urgent", PROMPT, max_tokens=4, priority=URGENT)
    placed = loop.submit(urgent, sharer=hog, returns=True)
    assert isinstance(placed, Placed) and placed.displaced == "hog3"


def test_one_that_was_displaced_gets_in_before_those_who_came_later() -> None:
    loop = full()
    assert ask(loop, "urgent", URGENT, tokens=5) == Placed(0, RequestId("batch4"))
    again = ask(loop, "batch4", waited_s=0.01)
    assert isinstance(again, Refusal), "all that is here is older, or urgent"
    assert ask(loop, "batch4", waited_s=2.0) == Placed(1, RequestId("batch3"))
    loop.run()
    first = [loop.token_at[RowKey(RequestId(name), 0)][0] for name in ("batch4", "batch2")]
    assert first[0] < first[1], "it has its old place: here it is the older one"


def test_one_that_has_waited_long_enough_is_displaced_no_more_and_goes_first() -> None:
    loop = full()
    for name in ("batch2", "batch3", "batch4"):
        loop.scheduler.cancel(RequestId(name), loop.now)
    for number in range(QUEUE - 1):
        ask(loop, f"urgent{number}", URGENT)
    assert isinstance(ask(loop, "aged", waited_s=AGED_S), Placed)
    assert isinstance(ask(loop, "most urgent", 0), Placed), "in the place of another"
    assert "aged" in here(loop)
    loop.turn()
    loop.run()
    order = sorted(
        (loop.token_at[RowKey(RequestId(name), 0)][0], name)
        for name in here(loop) | {key.request_id for key in loop.ends}
        if name not in ("batch0", "batch1") and RowKey(RequestId(name), 0) in loop.token_at
    )
    assert order[0][1] == "aged"


@given(st.integers(0, 1000), st.floats(0, 60), st.floats(0, 60))
def test_standing_never_gets_worse_and_ends_at_the_best(
    priority: int, waited_s: float, more_s: float
) -> None:
    before, after = standing(priority, waited_s), standing(priority, waited_s + more_s)
    assert 0.0 <= after <= before <= priority
    assert standing(priority, AGED_S) == 0.0
    assert standing(priority, 0.0) == priority


ROUNDING = 1e-9


@dataclass
class Gateway:
    """Submits, takes back, and submits again: what a gateway does, in virtual time. `since` is when
    each was first submitted."""

    loop: Loop
    priority: dict[str, int] = field(default_factory=dict[str, int])
    sharer: dict[str, Sharer] = field(default_factory=dict[str, Sharer])
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    since: dict[str, float] = field(default_factory=dict[str, float])
    back: list[str] = field(default_factory=list[str])
    refused: set[str] = field(default_factory=set[str])
    back_at: dict[str, float] = field(default_factory=dict[str, float])

    def submit(self, name: str) -> None:
        first = name not in self.since
        since_at = self.since.setdefault(name, self.loop.now)
        unbegun = here(self.loop) - begun(self.loop)
        answer = self.loop.submit(
            prepared(name, PROMPT, max_tokens=self.tokens[name], priority=self.priority[name], n=1),
            sharer=self.sharer[name],
            waited_s=self.loop.now - since_at,
            returns=True,
        )
        if isinstance(answer, Placed):
            if name in self.back:
                self.back.remove(name)
            if answer.displaced is not None:
                self.gave_way(answer.displaced, name, unbegun)
        elif first:
            self.refused.add(name)

    def gave_way(self, loser: RequestId, winner: str, unbegun: set[str]) -> None:
        now = self.loop.now
        assert loser in unbegun and loser not in self.back
        assert now - self.since[loser] < AGED_S, "what has aged is displaced no more"
        mine = standing(self.priority[loser], now - self.since[loser])
        theirs = standing(self.priority[winner], now - self.since[winner])
        assert mine > theirs - ROUNDING, "the scheduler adds up the waits in another order"
        rows = self.loop.scheduler._table.rows.values()  # pyright: ignore[reportPrivateUsage]
        assert Shares(row.sharer for row in rows).gives_way(self.sharer[loser]) is None
        self.back.append(loser)
        self.back_at[loser] = now

    def ask_again(self) -> None:
        """Have the one with the best standing ask for a place."""
        now = self.loop.now
        if self.back:
            order = {one: standing(self.priority[one], now - self.since[one]) for one in self.back}
            self.submit(min(self.back, key=lambda one: (order[one], self.since[one])))


@settings(max_examples=40, deadline=None)
@given(
    asks=st.lists(
        st.tuples(
            st.sampled_from([URGENT, HIGH, NORMAL, BATCH, 0, 1000]),
            st.sampled_from("abc"),
            st.integers(1, 60),
            st.integers(0, 12),
        ),
        min_size=10,
        max_size=40,
    )
)
def test_each_request_is_answered_once_and_whole_however_often_it_was_displaced(
    asks: list[tuple[int, str, int, int]],
) -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=ROWS, max_waiting=QUEUE))
    gateway = Gateway(loop)
    for number, (priority, client, tokens, pause) in enumerate(asks):
        name = f"r{number}"
        gateway.priority[name], gateway.tokens[name] = priority, tokens
        gateway.sharer[name] = ("", client, name)
        gateway.submit(name)
        for _ in range(pause):
            loop.turn()
        gateway.ask_again()
    for _ in range(20_000):
        if not loop.turn():
            if not gateway.back:
                break
            loop.now += 1.0
        gateway.ask_again()
    assert not gateway.back
    ended = {key.request_id for key in loop.ends}
    assert ended | gateway.refused == set(gateway.since) and not ended & gateway.refused
    for name in ended:
        expected = whole_output(100, PROMPT, gateway.tokens[name], frozenset())
        assert loop.made[RowKey(RequestId(name), 0)] == expected


def test_a_batch_request_is_answered_however_many_urgent_ones_never_end() -> None:
    """The bound: `AGED_S`, a second until it asks, and until a row is free."""
    loop = Loop(facts(), ScheduleSettings(max_rows=ROWS, max_waiting=QUEUE))
    gateway = Gateway(loop)

    def submit(name: str, priority: int, tokens: int) -> None:
        gateway.priority[name], gateway.tokens[name] = priority, tokens
        gateway.sharer[name] = (*ME, name)
        gateway.submit(name)

    for number in range(ROWS):
        submit(f"first{number}", URGENT, 60)
    submit("batch", BATCH, 10)
    key, asked_at, number = RowKey(RequestId("batch"), 0), 0.0, 0
    longest_s = 0.0
    while key not in loop.token_at:
        while len(here(loop)) < ROWS + QUEUE or gateway.refused == set():
            number += 1
            submit(f"urgent{number}", URGENT, 60)
        gateway.refused.clear()
        loop.turn()
        if loop.now - asked_at >= 1.0:
            gateway.ask_again()
            asked_at = loop.now
        assert loop.now < 60.0
    ended = [end.cost for end in loop.ends.values()]
    longest_s = max(cost.prefill_s + cost.decode_s for cost in ended)
    assert "batch" in gateway.back_at, "it was displaced"
    assert loop.token_at[key][0] <= AGED_S + 1.0 + longest_s + 1.0
