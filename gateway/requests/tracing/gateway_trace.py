"""What a gateway notes of a request that is traced: its stages, and what the lead runner told.

Pure: time arrives as `now`. Stages follow each other without gaps, each up to where the next one
begins, so that together they are the whole. How far the runner's clock is from ours follows from
what went between the two: nothing arrives before it was sent, so each message bounds the
difference from one side. Two processes of one node have one clock.
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
"""`read`: the body arrives; `parse`: it is understood; `place`: an instance is chosen;
`wait_model`, `wait_place`: until a model is loaded, until a runner has room; `route`: until a
runner has accepted it; `first_entry`: until something of the answer comes; `entries`: until its
end comes; `answer`: until its last byte is given out."""
MOST_STAGES = 64
"""A request that is given back again and again has no more than these."""
DRIFT = 1e-4
"""By how much two clocks may differ in their pace: 100 parts of a million."""


class StageSpan(NamedTuple):
    """A stage, in monotonic seconds of the gateway."""

    name: Stage
    began_at: float
    ended_at: float


class ClockOffset(NamedTuple):
    """What is to be taken from an instant of the runner's clock to have one of the gateway's, and
    by how much that may be wrong. `how`: both read one clock, or it was measured."""

    offset_s: float
    error_s: float
    how: Literal["one clock", "measured"]


class GatewayTrace:
    """The trace of one request of this process, which an instance is sought for at `now`.

    `lead` is what the runner told that answered it, None until then, and `ranks` what the ranks of
    its group did, by rank; `instance` and `node` are those that were asked last.
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
        """Note that it waits for its model, or for room at a runner."""
        self._enter(stage, now)

    def submitted(self, instance: InstanceId, node: NodeId | None, now: float) -> None:
        """Note that an instance is asked."""
        self.lead, self.instance, self.node = None, instance, node
        self.ranks.clear()
        self._sent_at = now
        self._enter("route", now)

    def accepted(self, now: float) -> None:
        """Note that the runner has accepted it."""
        self._accepted_at = now
        self._enter("first_entry", now)

    def arrived(self, now: float, *, ended: bool) -> None:
        """Note that something of the answer came; `ended`: its end with it."""
        if self._marks[-1][0] in ("route", "first_entry"):
            self._enter("entries", now)
        if ended:
            self._enter("answer", now)

    def told(self, traced: Traced | RankTraced, now: float) -> None:
        """Take what the runner tells, or one rank of its group after it."""
        if isinstance(traced, Traced):
            self.lead, self._told_at = traced, now
        elif self.lead is not None and traced.rank < len(self.lead.ranks):
            self.ranks[traced.rank] = traced
            if self._whole is not None and self.is_whole:
                whole, self._whole = self._whole, None
                whole()

    @property
    def is_whole(self) -> bool:
        """Return whether each rank of the group has told, or there is none."""
        return self.lead is None or len(self.ranks) == len(self.lead.ranks)

    @property
    def enclosing_spans(self) -> int:
        """Return how many spans enclose those of the document: the request, and once the runner
        has told, it and each rank of its group that told something."""
        if self.lead is None:
            return 1
        told = sum(of.spans is not None for of in self.ranks.values())
        return 2 + told * bool(self.lead.ranks)

    def when_whole(self, action: Callable[[], None] | None) -> None:
        """Have `action` called once the last rank tells; None: nothing waits for it any more."""
        self._whole = action

    def stages(self, started_at: float, read_at: float | None, ended_at: float) -> list[StageSpan]:
        """Return all stages of a request that came at `started_at`, was read at `read_at`, and ends
        now."""
        first: list[tuple[Stage, float]] = [("read", started_at)]
        if read_at is not None:
            first.append(("parse", read_at))
        marks = [*first, *self._marks]
        ends = [*(at for _, at in marks[1:]), ended_at]
        spans = [
            StageSpan(name, began_at, max(began_at, end))
            for (name, began_at), end in zip(marks, ends, strict=True)
        ]
        # an instance that was there at once was chosen in no time
        return [span for span in spans if span.name != "place" or span.ended_at > span.began_at]

    def offset(self, own_node: NodeId) -> ClockOffset:
        """Return how the clock of the runner that told differs from that of this node's processes.
        Only once it has told."""
        traced = self.lead
        assert traced is not None, "told"
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
