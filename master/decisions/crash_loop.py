"""Models whose runners fail again and again: tried again after growing pauses, or given up.

A copy is given up after three failures within a minute. A runner that says that its device may be
wedged counts twice; one that says that its model cannot be loaded is not tried again at all.
Slower ones are failures in a row, of any copy of the model, as long as none served for a while in
between: the first two are made good at once, from then on each pause is twice the one before.
A rank that ends because it lost another one, whose node is found lost soon after, says nothing of
its model: that failure is taken back.
Pure. Times are not in the state (only the holder's clock knows them); a new holder counts
afresh, which costs at most two more attempts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance

LIMIT = 3
WINDOW_S = 60.0
WEDGED = 70
LOAD_FAILED = 72
GROUP_LOST = 76
"""Exit codes of `runner.lifecycle` that bear on trying again."""
FREE_FAILURES = 2
FIRST_PAUSE_S = 15.0
LONGEST_PAUSE_S = 600.0
STILL_HEARD_S = 0.5
"""What was on its way when a node was lost may come so much after its loss is felt elsewhere."""
WELL_S = 300.0
"""A copy that served for so long was well: what fails later begins a new row."""


@dataclass(frozen=True, slots=True)
class Setback:
    """What follows from a failure, the `count`-th in a row: the copy is given up, or the next
    attempt is `pause_s` away."""

    count: int
    pause_s: float
    gives_up: bool


@dataclass(frozen=True, slots=True)
class LostRank:
    """A failure of an instance for want of one of its ranks, which were on these nodes."""

    instance: InstanceId
    nodes: frozenset[NodeId]
    at: float


@dataclass(slots=True)
class CrashLoops:
    """Recent failures of each instance, oldest first, none older than the window; how many
    failures in a row each model has, when it may be tried again, since when a copy is ready, and
    the last failure of each model if a lost rank was its reason."""

    longest_pause_s: float = LONGEST_PAUSE_S
    failures: dict[InstanceId, list[float]] = field(default_factory=dict[InstanceId, list[float]])
    in_a_row: dict[ModelId, int] = field(default_factory=dict[ModelId, int])
    waits_until: dict[ModelId, float] = field(default_factory=dict[ModelId, float])
    ready_at: dict[InstanceId, float] = field(default_factory=dict[InstanceId, float])
    lost_rank: dict[ModelId, LostRank] = field(default_factory=dict[ModelId, LostRank])

    def count_failure(self, instance: Instance, exit_code: int | None, now: float) -> Setback:
        """Count one failure of an instance; return what follows from it."""
        name = instance.instance
        recent = [at for at in self.failures.get(name, []) if now - at < WINDOW_S]
        recent += [now, now] if exit_code == WEDGED else [now]
        self.failures[name] = recent
        was_well = now - self.ready_at.pop(name, now) >= WELL_S
        count = 1 if was_well else self.in_a_row.get(instance.model, 0) + 1
        self.in_a_row[instance.model] = count
        doubled = count - FREE_FAILURES - 1
        pause_s = FIRST_PAUSE_S * 2.0 ** min(doubled, 30) if doubled >= 0 else 0.0
        pause_s = min(pause_s, self.longest_pause_s)
        self.waits_until[instance.model] = now + pause_s
        self.lost_rank.pop(instance.model, None)
        if exit_code == GROUP_LOST:
            nodes = frozenset(shard.node for shard in instance.shards)
            self.lost_rank[instance.model] = LostRank(name, nodes, now)
        gives_up = exit_code == LOAD_FAILED or len(recent) >= LIMIT
        return Setback(count, pause_s, gives_up)

    def excuse(self, heard_at: Mapping[NodeId, float]) -> None:
        """Take back each model's last failure where it was for want of a rank on a lost node that
        was not heard after it. `heard_at`: when each lost node was last heard."""
        for model, failure in list(self.lost_rank.items()):
            gone = failure.nodes & heard_at.keys()
            if not any(heard_at[node] <= failure.at + STILL_HEARD_S for node in gone):
                continue
            del self.lost_rank[model]
            self.in_a_row[model] = self.in_a_row.get(model, 1) - 1
            self.waits_until.pop(model, None)
            recent = self.failures.get(failure.instance, [])
            if failure.at in recent:
                recent.remove(failure.at)

    def next_at(self, model: ModelId) -> float:
        """Return when a model may be tried again, by this holder's clock; 0 if nothing failed."""
        return self.waits_until.get(model, 0.0)

    def note_ready(self, instance: InstanceId, now: float) -> None:
        """Note that a rank of an instance is ready."""
        self.ready_at[instance] = now

    def forget(self, instance: Instance, now: float) -> None:
        """Drop the failures of an instance that is gone; of its model, too, if it was well."""
        self.failures.pop(instance.instance, None)
        if now - self.ready_at.pop(instance.instance, now) >= WELL_S:
            self.in_a_row.pop(instance.model, None)
            self.waits_until.pop(instance.model, None)
