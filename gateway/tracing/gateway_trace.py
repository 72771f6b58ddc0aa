"""Records the timings of a traced request at the gateway: its stages, and the timings that the
runners report.

Pure: time arrives as `now`. Each stage lasts until the next one begins, so the stages together
cover the whole request. The offset between the runner's clock and the gateway's clock is estimated
from the messages between the two processes. No message arrives before it was sent, so each message
bounds the offset from one side. Two processes of one node share a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from bus.wire.ids import InstanceId, NodeId
from bus.wire.messages.tokens import Traced
from bus.wire.messages.traces import RankTraced

Stage = Literal[
    "read",
    "parse",
    "place",
    "wait_model",
    "wait_place",
    "route",
    "first_entry",
    "entries",
    "answer",
]
"""The stages of a request. `read`: its body arrives. `parse`: the body is parsed. `place`: an
instance is chosen. `wait_model`, `wait_place`: until a model is loaded, until a runner has a place.
`route`: until a runner has accepted the request. `first_entry`: until the first entry of the
answer. `entries`: until the last entry. `answer`: until the last byte is sent."""
MOST_STAGES = 64
"""Maximum number of stages in a trace. A request that is preempted again and again would have
more."""
DRIFT = 1e-4
"""The assumed maximum drift between two clocks: 100 parts per million."""


class StageSpan(NamedTuple):
    """One stage of a request: its name, and its beginning and end in monotonic seconds of the
    gateway."""

    name: Stage
    began_at: float
    ended_at: float


class ClockOffset(NamedTuple):
    """An instant of the runner's clock minus this offset is the same instant of the gateway's
    clock. `error_s` is the possible error of the offset. `how`: both processes read the same clock,
    or the offset was measured."""

    offset_s: float
    error_s: float
    how: Literal["one clock", "measured"]


class GatewayTrace:
    """The trace of one request of this process; its placement begins at `now`.

    `lead`: timings of the runner that answered, or None before they arrive. `ranks`: timings of the
    ranks of its group, by rank. `instance`: the instance to which the request was last sent;
    `node`: the node of its lead runner.
    """

    def __init__(self, now: float) -> None:
        self.lead: Traced | None = None
        self.ranks: dict[int, RankTraced] = {}
        self._whole: Callable[[], None] | None = None
        self.instance: InstanceId | None = None
        self.node: NodeId | None = None
        self._marks: list[tuple[Stage, float]] = [("place", now)]
        self._sent_at = self._accepted_at = self._told_at = now

    def waits(self, stage: Literal["wait_model", "wait_place"], now: float) -> None:
        """Record that the request waits for its model, or for a place at a runner."""
        self._enter(stage, now)

    def submitted(self, instance: InstanceId, node: NodeId | None, now: float) -> None:
        """Record that the request was sent to an instance."""
        self.lead, self.instance, self.node = None, instance, node
        self.ranks.clear()
        self._sent_at = now
        self._enter("route", now)

    def accepted(self, now: float) -> None:
        """Record that the runner accepted the request."""
        self._accepted_at = now
        self._enter("first_entry", now)

    def arrived(self, now: float, *, ended: bool) -> None:
        """Record that entries (parts of the answer) arrived from the runner. `ended`: the last
        entry of the request is among them."""
        if self._marks[-1][0] in ("route", "first_entry"):
            self._enter("entries", now)
        if ended:
            self._enter("answer", now)

    def add_timings(self, timings: Traced | RankTraced, now: float) -> None:
        """Add timings of the runner, or later of one rank of its group."""
        if isinstance(timings, Traced):
            self.lead, self._told_at = timings, now
        elif self.lead is not None and timings.rank < len(self.lead.ranks):
            self.ranks[timings.rank] = timings
            if self._whole is not None and self.is_whole:
                whole, self._whole = self._whole, None
                whole()

    @property
    def is_whole(self) -> bool:
        """Return whether all timings have arrived: each rank of the runner's group has reported, or
        the runner has no group."""
        return self.lead is None or len(self.ranks) == len(self.lead.ranks)

    @property
    def enclosing_spans(self) -> int:
        """Return how many spans an export adds around the spans in the stored trace. These are one
        for the request, one for its runner, and one for each rank that has reported spans."""
        if self.lead is None:
            return 1
        with_spans = sum(timings.spans is not None for timings in self.ranks.values())
        return 2 + with_spans * bool(self.lead.ranks)

    def when_whole(self, action: Callable[[], None] | None) -> None:
        """Call `action` once the last rank has reported. None removes the action that an earlier
        call of this method set."""
        self._whole = action

    def stages(self, started_at: float, read_at: float | None, ended_at: float) -> list[StageSpan]:
        """Return all stages of a request. Its first byte came at `started_at`, its body was
        complete at `read_at` (None: it never was), and it ended at `ended_at`."""
        first: list[tuple[Stage, float]] = [("read", started_at)]
        if read_at is not None:
            first.append(("parse", read_at))
        marks = [*first, *self._marks]
        ends = [*(at for _, at in marks[1:]), ended_at]
        spans = [
            StageSpan(name, began_at, max(began_at, end))
            for (name, began_at), end in zip(marks, ends, strict=True)
        ]
        # an instance that was ready at once took no time to choose
        return [span for span in spans if span.name != "place" or span.ended_at > span.began_at]

    def offset(self, own_node: NodeId) -> ClockOffset:
        """Return the offset of the runner's clock to that of this node's processes. Needs the
        runner's timings."""
        traced = self.lead
        assert traced is not None, "the runner has not reported its timings"
        if self.node == own_node:
            return ClockOffset(0.0, 0.0, "one clock")
        most = traced.received_at - self._sent_at
        least = max(traced.accepted_at - self._accepted_at, traced.told_at - self._told_at)
        drift_s = DRIFT * (self._told_at - self._sent_at)
        return ClockOffset((most + least) / 2, abs(most - least) / 2 + drift_s, "measured")

    def _enter(self, stage: Stage, now: float) -> None:
        last, _ = self._marks[-1]
        if last in (stage, "answer"):
            return
        if len(self._marks) < MOST_STAGES or stage in ("entries", "answer"):
            self._marks.append((stage, now))
