"""The pieces of a copy, whatever order they come in."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.kv import RunOffered
from bus.wire.messages.weights import PIECE_BYTES
from worker.transfer.kv_moves.fetch import WINDOW, RunFetch

AGAIN_S = 1.0


def fetch_of(size: int, deadline_at: float = 100.0) -> RunFetch:
    offered = RunOffered(blocks=1, name="n", size_bytes=size, digest="d")
    return RunFetch(offered, deadline_at, AGAIN_S)


@given(st.integers(min_value=1, max_value=40 * PIECE_BYTES), st.integers(), st.floats(0, 0.5))
def test_every_byte_is_asked_for_and_counted_once(size: int, seed: int, lost: float) -> None:
    fetch, chance, now = fetch_of(size), random.Random(seed), 0.0
    covered: set[int] = set()
    while not fetch.is_complete:
        asks = fetch.asks(now)
        assert len(asks) <= WINDOW
        chance.shuffle(asks)
        for ask in asks:
            assert 0 < ask.length <= PIECE_BYTES and ask.offset + ask.length <= size
            if chance.random() >= lost:
                assert fetch.take(ask.offset, ask.length) == (ask.offset not in covered)
                covered.add(ask.offset)
                assert not fetch.take(ask.offset, ask.length)
        now += AGAIN_S
    assert fetch.received_bytes == size and not fetch.asks(now)
    assert not fetch.is_late(1e9)


def test_what_was_not_asked_for_is_refused() -> None:
    fetch = fetch_of(2 * PIECE_BYTES + 5)
    assert not fetch.take(0, PIECE_BYTES)
    fetch.asks(0.0)
    assert not fetch.take(1, PIECE_BYTES)
    assert not fetch.take(0, PIECE_BYTES - 1)
    assert not fetch.take(2 * PIECE_BYTES, PIECE_BYTES)
    assert fetch.take(2 * PIECE_BYTES, 5) and fetch.received_bytes == 5
    assert fetch.is_late(100.0) and not fetch.is_late(99.0)
