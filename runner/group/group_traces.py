"""The lead's part of tracing: after a traced request has ended, it collects the spans that its
group's followers recorded.

Pure: time arrives as `now`. Nothing waits for an answer. A rank that does not answer is left out of
the trace, and the trace's display says so. Before a follower is asked, a burst of pings measures
its clock offset. While a request is traced, one more ping goes with each heartbeat, so that the
clock offset of a long request is bounded from its beginning.
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
"""Number of pings that are sent to a follower before it is asked for its spans."""
WAITS_S = 2.0
"""A follower's answer is ignored if it arrives later than this after the question."""

TellRank = Callable[[RankTraced], None]


@dataclass(slots=True)
class AskedFor:
    """A request whose spans were requested from the followers. The request began at `began_at`;
    `ranks` have not answered yet."""

    tell: TellRank
    began_at: float
    asked_at: float
    ranks: set[int]


@dataclass(slots=True)
class FollowerClock:
    """The clock measurement of one follower. `pings` is how many pings of the current burst remain.
    After the last one, the waiting requests for spans (`asks`) are sent."""

    clock: ClockOffsets = field(default_factory=ClockOffsets)
    pings: int = 0
    asks: list[AskTrace] = field(default_factory=list[AskTrace])


class GroupTraces:
    """The lead's part of collecting spans. `size` counts all ranks; `send` sends a message to a
    follower."""

    def __init__(
        self, size: int, recorder: RankRecorder, send: Callable[[int, ToRank], None]
    ) -> None:
        self._recorder = recorder
        self._send = send
        self._followers = {rank: FollowerClock() for rank in range(1, size)}
        self._requests: dict[RequestId, AskedFor] = {}

    def ask(self, request_id: RequestId, step: int, tell: TellRank, now: float) -> None:
        """Pass this rank's spans of the request to `tell` immediately, and those of each other rank
        when it answers. `step` is the last step of the request."""
        spans = self._recorder.take(request_id)
        tell(RankTraced(request_id, 0, 0.0, 0.0, spans))
        began_at = now if spans is None else spans.began_at
        self._requests[request_id] = AskedFor(tell, began_at, now, set(self._followers))
        for rank, follower in self._followers.items():
            follower.asks.append(AskTrace(request_id, step))
            if not follower.pings:
                follower.pings = PINGS
                self._send(rank, RankPing(now))

    def beat(self, now: float) -> None:
        """Called with each heartbeat: ping the followers while a request is traced, and drop
        requests whose answers are overdue."""
        if self._recorder.notes:
            for rank in self._followers:
                self._send(rank, RankPing(now))
        for request_id, request in list(self._requests.items()):
            if now - request.asked_at > WAITS_S:
                del self._requests[request_id]

    def take_answer(self, rank: int, message: RankPong | RankTrace, now: float) -> None:
        """Process a follower's reply: the times of a ping, or the spans of a request."""
        follower = self._followers[rank]
        if isinstance(message, RankTrace):
            self._take_spans(rank, follower, message, now)
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

    def _take_spans(
        self, rank: int, follower: FollowerClock, message: RankTrace, now: float
    ) -> None:
        request = self._requests.get(message.request_id)
        if request is None or rank not in request.ranks:
            return
        request.ranks.discard(rank)
        if not request.ranks:
            del self._requests[message.request_id]
        clock = follower.clock.estimate(request.began_at, now)
        if clock is not None:
            trace = RankTraced(
                message.request_id, rank, clock.offset_s, clock.error_s, message.spans
            )
            request.tell(trace)
