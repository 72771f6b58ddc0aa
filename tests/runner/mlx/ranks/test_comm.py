"""In which order a group's lead gives the device its work: that of the plans, held or not."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from runner.group.rank_recorder import RankRecorder
from runner.mlx.ranks.comm import Comm, GroupComm
from runner.mlx.ranks.exchange_order import OutOfOrder


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the device gets, in order."""
    found: list[Any] = []
    monkeypatch.setattr(mx, "async_eval", lambda arrays: found.append(arrays))
    return found


def comm_of(monkeypatch: pytest.MonkeyPatch, rank: int) -> GroupComm:
    """One rank of a pipeline of two whose exchanges stay in this process."""
    monkeypatch.setattr(mx.distributed, "init", lambda **_: None)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(mx.distributed, "recv", lambda shape, dtype, _, group: mx.zeros(shape))
    spans = RankRecorder(itertools.count().__next__, nullcontext())
    context: Any = SimpleNamespace(
        rank=rank, size=2, sharding="pipeline", backend="ring", spans=spans, ways={}
    )
    return GroupComm(context)


def test_what_is_held_goes_before_what_is_given(
    monkeypatch: pytest.MonkeyPatch, given: list[Any]
) -> None:
    lead = comm_of(monkeypatch, 0)
    one, two, three = ([mx.array(n)] for n in range(3))
    lead.submit_or_hold(one)
    lead.submit_or_hold(two)
    assert given == []
    lead.submit(three)
    assert given == [one, two, three]
    lead.flush()
    assert given == [one, two, three]


def test_what_arrives_belongs_to_what_is_started_next_and_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, given: list[Any]
) -> None:
    lead = comm_of(monkeypatch, 0)
    waits: list[float] = []
    lead._ring = SimpleNamespace(wait=waits.append)  # type: ignore[assignment]
    hidden = lead.recv_hidden((1, 1, 4), mx.float32)
    assert len(lead._order.arriving) == 1 and lead._order.arriving[0] is hidden
    lead.submit_or_hold([hidden + 1])
    assert lead._order.arriving == [] and waits == [], "nothing is waited for before it is given"
    lead.flush()
    assert len(waits) == 1 and len(given) == 1
    lead.submit([mx.array(1)])
    assert len(waits) == 1, "nothing arrives for this"


def test_a_follower_holds_nothing(monkeypatch: pytest.MonkeyPatch, given: list[Any]) -> None:
    follower = comm_of(monkeypatch, 1)
    arrays = [mx.array(1)]
    follower.submit_or_hold(arrays)
    assert given == [arrays]


def test_a_first_stage_takes_tokens_only_when_they_are_awaited(
    monkeypatch: pytest.MonkeyPatch, given: list[Any]
) -> None:
    first = comm_of(monkeypatch, 1)
    out, caches = mx.array(1), mx.array(2)
    tokens = first.recv_tokens(3, out)
    assert given == [[out]]
    awaited = first.submit_prompt([tokens], [caches])
    assert len(awaited) == 2 and len(given) == 2
    assert len(given[1]) == 1 and given[1][0] is caches
    first.await_tokens(tokens)
    assert len(given) == 3 and given[2][0] is tokens
    first.await_tokens(tokens)
    assert len(given) == 3, "once"


def test_a_rank_alone_gives_everything_at_once_and_has_no_lead(given: list[Any]) -> None:
    comm, arrays = Comm(), [mx.array(1)]
    comm.submit_or_hold(arrays)
    comm.flush()
    comm.settle()
    assert given == [arrays]
    assert comm.send_tokens(arrays[0]) is arrays[0]
    assert comm.least(7) == 7
    with pytest.raises(OutOfOrder):
        comm.recv_tokens(1, arrays[0])
