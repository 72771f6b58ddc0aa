"""A suspect computes some tokens before another request begins beside it (decision 0098)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.ids import RequestId
from bus.wire.messages.tokens import TRIAL_TOKENS
from runner.schedule import RowFinished, RowKey, ScheduleSettings
from tests.harness.engine import facts
from tests.harness.scheduling import Loop, prepared

PROMPT = [3, 5, 7, 11]
REQUESTS = st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, 30)), max_size=8)


@given(REQUESTS, st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_one_suspect_is_on_trial_at_a_time_and_all_are_answered(
    requests: list[tuple[bool, int, int]], rows: int
) -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=rows))

    def check() -> None:
        live = loop.scheduler._table.live.values()  # pyright: ignore[reportPrivateUsage]
        tried = {row.key.request_id for row in live if row.is_on_trial and row.status != "ended"}
        assert len(tried) <= 1

    loop.on_step = check
    for number, (suspect, n, tokens) in enumerate(requests):
        loop.submit(prepared(f"r{number}", PROMPT, n=n, max_tokens=tokens), suspect=suspect)
    loop.run()
    assert all(isinstance(end, RowFinished) for end in loop.ends.values())
    assert len(loop.ends) == sum(n for _, n, _ in requests)


def test_nothing_begins_beside_a_suspect_until_it_has_made_some_tokens() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=8))
    loop.submit(prepared("suspect", PROMPT, max_tokens=100), suspect=True)
    loop.submit(prepared("next", PROMPT, max_tokens=100), suspect=True)
    loop.submit(prepared("new", PROMPT, max_tokens=100))
    first, others = RowKey(RequestId("suspect"), 0), (RequestId("next"), RequestId("new"))
    while not any(RowKey(name, 0) in loop.made for name in others):
        loop.turn()
    assert len(loop.made[first]) >= TRIAL_TOKENS


def test_a_suspect_whose_client_does_not_read_holds_nobody_up() -> None:
    loop = Loop(facts(), ScheduleSettings(max_rows=8))
    key = RowKey(RequestId("suspect"), 0)
    loop.submit(prepared("suspect", PROMPT, max_tokens=100), suspect=True)
    loop.turn()
    loop.scheduler.pause(key, loop.now)
    loop.submit(prepared("new", PROMPT, max_tokens=5))
    while RowKey(RequestId("new"), 0) not in loop.ends:
        loop.turn()
