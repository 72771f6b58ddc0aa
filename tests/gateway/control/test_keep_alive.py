"""Which wishes about idling the holder is told, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import InstanceId, ModelId
from bus.wire.instances import LEAST_IDLE_S, Instance
from gateway.control.keep_alive import APART_S, KeepAliveWishes

NAME = InstanceId("i")


def instances(keep_alive_s: float) -> dict[str, Instance]:
    instance = Instance(
        instance=NAME, model=ModelId("m"), shards=(), context_tokens=8, keep_alive_s=keep_alive_s
    )
    return {NAME: instance}


def test_a_wish_is_told_at_once_and_what_is_so_already_not_at_all() -> None:
    wishes = KeepAliveWishes()
    wishes.wish(NAME, 300.0)
    assert wishes.due(instances(300.0), 1.0) == []
    wishes.wish(NAME, 60.0)
    assert wishes.due(instances(300.0), 1.1) == [(NAME, 60.0)]
    assert wishes.due(instances(60.0), 999.0) == []
    wishes.wish(NAME, float("inf"))
    assert wishes.due(instances(60.0), 1000.0) == [(NAME, -1.0)]
    wishes.wish(NAME, -1.0)
    assert wishes.due(instances(-5.0), 2000.0) == [], "for ever is for ever"


def test_of_wishes_that_alternate_the_last_is_told_now_and_then() -> None:
    wishes, told, state = KeepAliveWishes(), list[float](), instances(300.0)
    for step in range(2000):
        now = 0.1 * step
        if step < 1000:
            wishes.wish(NAME, 60.0 if step % 2 else 600.0)
        for _, seconds in wishes.due(state, now):
            told.append(now)
            state = instances(seconds)
    assert len(told) <= 2 + 100 / APART_S
    assert state[NAME].keep_alive_s == 60.0, "the last wish"


def test_a_wish_about_an_instance_that_is_gone_is_forgotten() -> None:
    wishes = KeepAliveWishes()
    wishes.wish(NAME, 60.0)
    assert wishes.due({}, 1.0) == []
    assert wishes.due(instances(300.0), 2.0) == []


@given(
    st.lists(
        st.tuples(
            st.floats(min_value=0.0, max_value=100.0),
            st.floats(min_value=0.0, max_value=1000.0),
        ),
        max_size=60,
    )
)
def test_no_copy_idles_out_that_was_wished_to_stay(asked: list[tuple[float, float]]) -> None:
    """Requests wish and are followed by pauses; the holder unloads by its state alone."""
    wishes, kept_s, now, told = KeepAliveWishes(), 300.0, 0.0, 0
    for pause_s, wish_s in asked:
        wishes.wish(NAME, wish_s)
        asked_at = now
        while now <= asked_at + pause_s:
            for _, seconds in wishes.due(instances(kept_s), now):
                kept_s, told = seconds, told + 1
            if now - asked_at > max(kept_s, LEAST_IDLE_S):
                assert now - asked_at >= wish_s, "unloaded before its time"
                return
            now += 1.0
        now = asked_at + pause_s
        assert told <= 1 + now / (LEAST_IDLE_S / 2) + 1
