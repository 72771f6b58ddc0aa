"""What a group's lead asks of its followers when a request that is traced has ended.

Pure: time arrives as `now`. Nothing waits for an answer: a rank that does not give one is not told
of, and who reads the trace says so. Before a follower is asked, a few pings in a row measure how
far its clock is; while a request is traced one goes with each beat besides, so that a long one has
bounds from its beginning on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bus.links.clock_offset import ClockOffsets, ClockSample
from bus.wire.ids import RequestId
from bus.wire.messages.traces import RankTraced
from runner.group.rank_frames import AskTrace, RankPing, RankPong, RankTrace, ToRank
from runner.group.rank_recorder import RankRecorder

PINGS = 6
"""In a row, before a follower is asked."""
WAITS_S = 2.0
"""An answer that takes longer is not told."""

TellRank = Callable[[RankTraced], None]


@dataclass(slots=True)
class AskedFor:
    """A request that followers are asked about: it began at `began_at`, and `ranks` are those that
    have not answered."""

    tell: TellRank
    began_at: float
    asked_at: float
    ranks: set[int]


@dataclass(slots=True)
class FollowerClock:
    """One follower: its clock, how many pings in a row are to go before `asks` do."""

    clock: ClockOffsets = field(default_factory=ClockOffsets)
    pings: int = 0
    asks: list[AskTrace] = field(default_factory=list[AskTrace])


class GroupTraces:
    """The lead's questions. `size` counts all ranks; `send` gives a follower a message."""

    def __init__(
        self, size: int, recorder: RankRecorder, send: Callable[[int, ToRank], None]
    ) -> None:
        self._recorder = recorder
        self._send = send
        self._followers = {rank: FollowerClock() for rank in range(1, size)}
        self._asked: dict[RequestId, AskedFor] = {}

    def ask(self, request_id: RequestId, step: int, tell: TellRank, now: float) -> None:
        """Tell of this rank at once, and of each other when it has answered. The request ended with
        `step`."""
        spans = self._recorder.take(request_id)
        tell(RankTraced(request_id, 0, 0.0, 0.0, spans))
        began_at = now if spans is None else spans.began_at
        self._asked[request_id] = AskedFor(tell, began_at, now, set(self._followers))
        for rank, follower in self._followers.items():
            follower.asks.append(AskTrace(request_id, step))
            if not follower.pings:
                follower.pings = PINGS
                self._send(rank, RankPing(now))

    def beat(self, now: float) -> None:
        """Measure clocks while a request is traced; forget what was not answered."""
        if self._recorder.notes:
            for rank in self._followers:
                self._send(rank, RankPing(now))
        for request_id, asked in list(self._asked.items()):
            if now - asked.asked_at > WAITS_S:
                del self._asked[request_id]

    def heard(self, rank: int, message: RankPong | RankTrace, now: float) -> None:
        """Take a follower's answer."""
        follower = self._followers[rank]
        if isinstance(message, RankTrace):
            self._told(rank, follower, message, now)
            return
        sample = ClockSample(message.sent_at, message.had_at, message.replied_at, now)
        follower.clock.add(sample)
        if follower.pings > 1:
            follower.pings -= 1
            self._send(rank, RankPing(now))
            return
        follower.pings = 0
        asks, follower.asks = follower.asks, []
        for ask in asks:
            self._send(rank, ask)

    def _told(self, rank: int, follower: FollowerClock, message: RankTrace, now: float) -> None:
        asked = self._asked.get(message.request_id)
        if asked is None or rank not in asked.ranks:
            return
        asked.ranks.discard(rank)
        if not asked.ranks:
            del self._asked[message.request_id]
        clock = follower.clock.estimate(asked.began_at, now)
        if clock is not None:
            told = RankTraced(
                message.request_id, rank, clock.offset_s, clock.error_s, message.spans
            )
            asked.tell(told)
