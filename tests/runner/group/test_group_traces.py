"""What a lead asks its followers when a traced request has ended, and what becomes of answers."""

from __future__ import annotations

import threading

from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.requests import Sampling
from bus.wire.messages.traces import RankSpans, RankTraced
from runner.engine import RowId, RowSpec, StepPlan
from runner.group.group_traces import PINGS, WAITS_S, GroupTraces
from runner.group.rank_frames import AskTrace, RankPing, RankPong, RankTrace, ToRank
from runner.group.rank_recorder import RankRecorder

RID = RequestId("r")
SPANS = RankSpans(1.0, 2.0, (), (), (), ())
AHEAD_S = 500.0
WAY_S = 0.001


class Play:
    """A lead of three ranks by a clock that is set by hand; followers answer as they are told."""

    def __init__(self) -> None:
        self.at = 100.0
        self.sent: list[tuple[int, ToRank]] = []
        self.told: list[RankTraced] = []
        self.recorder = RankRecorder(lambda: self.at, threading.Lock())
        self.traces = GroupTraces(3, self.recorder, lambda *one: self.sent.append(one))

    def trace(self) -> None:
        row = RowSpec(RowId(1), (TokenId(1),), Sampling(), seed=0, traced=RID)
        self.recorder.begin(StepPlan(1, admit=(row,)))
        self.recorder.enter("compute")
        self.at += 3.0
        self.recorder.enter("host")

    def ask(self) -> None:
        self.traces.ask(RID, 7, self.told.append, self.at)

    def answer(self, *, deaf: int | None = None) -> list[tuple[int, ToRank]]:
        """Answer all that is sent until nothing more is; what was answered."""
        answered: list[tuple[int, ToRank]] = []
        while self.sent:
            rank, message = self.sent.pop(0)
            if rank == deaf:
                continue
            answered.append((rank, message))
            self.at += 2 * WAY_S
            if isinstance(message, RankPing):
                there_at = message.sent_at + WAY_S + AHEAD_S
                back_at = self.at - WAY_S + AHEAD_S
                self.traces.take_answer(rank, RankPong(message.sent_at, there_at, back_at), self.at)
            elif isinstance(message, AskTrace):
                self.traces.take_answer(rank, RankTrace(message.request_id, SPANS), self.at)
        return answered


def test_each_rank_is_told_of_with_how_far_its_clock_is() -> None:
    play = Play()
    play.trace()
    play.ask()
    assert [one.rank for one in play.told] == [0], "the lead's own at once"
    assert play.told[0].spans is not None and play.told[0].error_s == 0.0
    asked = play.answer()
    for rank in (1, 2):
        kinds = [type(message) for to, message in asked if to == rank]
        assert kinds == [RankPing] * PINGS + [AskTrace]
    assert AskTrace(RID, 7) in [message for _, message in asked]
    others = {one.rank: one for one in play.told[1:]}
    assert set(others) == {1, 2}
    for one in others.values():
        assert one.spans == SPANS
        assert abs(one.offset_s - AHEAD_S) <= one.error_s < 0.01


def test_a_rank_that_does_not_answer_keeps_the_others_from_nothing() -> None:
    play = Play()
    play.trace()
    play.ask()
    play.answer(deaf=1)
    assert [one.rank for one in play.told] == [0, 2]
    play.at += WAITS_S + 0.1
    play.traces.beat(play.at)
    play.traces.take_answer(1, RankTrace(RID, SPANS), play.at)
    assert [one.rank for one in play.told] == [0, 2], "it is too late"


def test_clocks_are_measured_while_a_request_is_traced_and_never_else() -> None:
    play = Play()
    play.traces.beat(play.at)
    assert play.sent == []
    play.trace()
    play.traces.beat(play.at)
    assert [(rank, type(one)) for rank, one in play.sent] == [(1, RankPing), (2, RankPing)]
    play.sent.clear()
    play.ask()
    play.answer()
    play.traces.beat(play.at)
    assert play.sent == []


def test_two_requests_that_end_at_once_are_both_asked_for() -> None:
    play = Play()
    play.trace()
    play.ask()
    play.traces.ask(RequestId("s"), 8, play.told.append, play.at)
    play.answer()
    assert sorted((one.request_id, one.rank) for one in play.told) == [
        (name, rank) for name in ("r", "s") for rank in range(3)
    ]


def test_what_was_not_asked_for_is_not_told() -> None:
    play = Play()
    play.traces.take_answer(1, RankTrace(RID, SPANS), play.at)
    play.ask()
    play.answer()
    play.traces.take_answer(2, RankTrace(RID, SPANS), play.at)
    assert [one.rank for one in play.told] == [0, 1, 2]
