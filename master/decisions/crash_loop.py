"""Decides when a model whose runners fail repeatedly is retried, and when it is given up.

Pure. An instance is given up after three failures within a minute. A wedged device counts twice. A
runner that cannot load its model or import MLX is not retried on that node. Slower failures are
counted in a row, over all instances of the model, until an instance has served for a while. After
the first two failures the model is retried immediately; after that each pause is twice as long. The
failures are also counted per node: if an instance pauses or was given up on a node, only other
nodes get the model meanwhile (`barred`). A node whose files of the model have changed is not
barred, since the user may have repaired them. If the ranks of a group lost each other, no node is
blamed. If a rank ends because it lost another rank, and that rank's node is found lost soon after,
the failure is taken back. The cluster's state has a copy of these counts for the next leader
(`setbacks`, `recall`). The copy has wall-clock times; this module uses the leader's own clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import MAX_WHY, Instance, NodeSetback, Setbacks

LIMIT = 3
WINDOW_S = 60.0
WEDGED = 70
LOAD_FAILED = 72
GROUP_LOST = 76
CANNOT_IMPORT = 77
"""Exit codes of `runner.lifecycle` that affect retries."""
FREE_FAILURES = 2
FIRST_PAUSE_S = 15.0
LONGEST_PAUSE_S = 600.0
RETRY_FAILED_S = 60.0
"""An instance that was given up is retried on demand, but not before this many seconds have
passed."""
RETRY_REFUSED_S = 5.0
"""An instance that a node refused for another reason than memory is retried on demand after this
many seconds. Such a reason is a model whose files are being deleted or replaced."""
STILL_HEARD_S = 0.5
"""Messages of a lost node can still arrive this long after other nodes have detected its loss."""
WELL_S = 300.0
"""An instance that served for this long was healthy, so a later failure is counted as the first of
a new series."""
OLD_S = 86_400.0
"""A failure older than this many seconds is forgotten in any case."""


@dataclass(frozen=True, slots=True)
class Setback:
    """The consequence of the `count`-th failure in a row: the instance is given up, or the next
    attempt starts after `pause_s`."""

    count: int
    pause_s: float
    gives_up: bool


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A model's failures in a row on one node: how many, and the last message. The node does not
    get the model before `until`, in seconds on the leader's clock."""

    count: int
    until: float
    why: str


@dataclass(slots=True)
class FailedRow:
    """A model's failures in a row. The model is not loaded before `waits_until`, in seconds on the
    leader's clock.

    `at`, `instance` and `generation` (load attempt) are those of the last failure; `for_want_of`
    are the nodes whose loss may have caused it. `on`: the failures per node, if known.
    """

    count: int
    waits_until: float
    at: float
    instance: InstanceId
    generation: int
    for_want_of: frozenset[NodeId] = frozenset()
    on: dict[NodeId, NodeRow] = field(default_factory=dict[NodeId, NodeRow])


@dataclass(slots=True)
class CrashLoops:
    """The recent failures of models. For each instance, those of the last minute, oldest first, and
    the time since which it is ready. For each model, the failures in a row."""

    longest_pause_s: float = LONGEST_PAUSE_S
    failures: dict[InstanceId, list[float]] = field(default_factory=dict[InstanceId, list[float]])
    rows: dict[ModelId, FailedRow] = field(default_factory=dict[ModelId, FailedRow])
    ready_at: dict[InstanceId, float] = field(default_factory=dict[InstanceId, float])
    files: dict[tuple[ModelId, NodeId], Hashable] = field(
        default_factory=dict[tuple[ModelId, NodeId], Hashable]
    )
    """Identities of the files with which a model failed on a node, as soon as they are known."""

    def count_failure(
        self,
        instance: Instance,
        exit_code: int | None,
        now: float,
        *,
        node: NodeId | None = None,
        message: str = "",
    ) -> Setback:
        """Count one failure of an instance on `node`. Return the consequence. `message` is the
        runner's last message."""
        name, model = instance.instance, instance.model
        recent = [at for at in self.failures.get(name, []) if now - at < WINDOW_S]
        recent += [now, now] if exit_code == WEDGED else [now]
        self.failures[name] = recent
        was_well = now - self.ready_at.pop(name, now) >= WELL_S
        before = self.rows.get(model)
        if was_well:
            before = None
        place, on = _place_of(instance, exit_code, node), {} if before is None else before.on
        total = 0 if before is None else before.count
        there = on.get(place) if place is not None else None
        count = 1 + (there.count if there is not None else 0 if place is not None and on else total)
        doubled = count - FREE_FAILURES - 1
        pause_s = FIRST_PAUSE_S * 2.0 ** min(doubled, 30) if doubled >= 0 else 0.0
        pause_s = min(pause_s, self.longest_pause_s)
        gives_up = exit_code in (LOAD_FAILED, CANNOT_IMPORT) or len(recent) >= LIMIT
        waits_s = max(pause_s, RETRY_FAILED_S) if gives_up else pause_s
        row = FailedRow(total + 1, now + waits_s, now, name, instance.generation)
        row.on = dict(on)
        if place is not None:
            row.on[place] = NodeRow(count, now + waits_s, message[:MAX_WHY])
            self.files.pop((model, place), None)
        if exit_code == GROUP_LOST:
            row.for_want_of = frozenset(shard.node for shard in instance.shards)
        self.rows[model] = row
        return Setback(count, pause_s, gives_up)

    def counted(self, instance: Instance) -> Setback | None:
        """Return the consequence of the failure of the instance's current generation (load attempt)
        if that failure was already counted; else None."""
        row, last = self.rows.get(instance.model), (instance.instance, instance.generation)
        if row is None or (row.instance, row.generation) != last:
            return None
        gives_up = len(self.failures.get(row.instance, [])) >= LIMIT
        place = _place_of(instance, None, None)
        there = None if place is None else row.on.get(place)
        count = row.count if there is None else there.count
        return Setback(count, max(0.0, row.waits_until - row.at), gives_up)

    def barred(self, now: float) -> dict[ModelId, dict[NodeId, NodeRow]]:
        """Return the nodes that do not get a model now because its runners failed there, by
        model."""
        barred = {
            model: {node: on_node for node, on_node in row.on.items() if on_node.until > now}
            for model, row in self.rows.items()
        }
        return {model: nodes for model, nodes in barred.items() if nodes}

    def failed_on(self, model: ModelId) -> Mapping[NodeId, NodeRow]:
        """Return the nodes on which a model's runners failed, barred or not."""
        row = self.rows.get(model)
        return {} if row is None else row.on

    def bar(self, model: ModelId, node: NodeId, now: float) -> None:
        """Exclude a node from a model for a while, because the model's runner failed on the node
        and another node got the model."""
        on = self.rows[model].on
        on[node] = replace(on[node], until=max(on[node].until, now + RETRY_FAILED_S))

    def forget_replaced(self, files: Mapping[NodeId, Mapping[ModelId, Hashable]]) -> list[ModelId]:
        """Forget the failures of a model on a node if its files there have changed since. Return
        the models that may be tried at once because of that. `files`: for each node that is not
        lost, its models, with an identity of their files."""
        failed = {(model, node) for model, row in self.rows.items() for node in row.on}
        self.files = {place: before for place, before in self.files.items() if place in failed}
        replaced: list[ModelId] = []
        for model, node in sorted(place for place in failed if place[1] in files):
            current = files[node].get(model)
            if self.files.setdefault((model, node), current) == current:
                continue
            on = self.rows[model].on
            del on[node], self.files[model, node]
            self.rows[model].waits_until = 0.0
            if not on:
                del self.rows[model]
            replaced.append(model)
        return replaced

    def excuse(self, heard_at: Mapping[NodeId, float]) -> None:
        """Take back each model's last failure if the loss of a node explains it: the node has sent
        nothing since the failure. `heard_at` is when each lost node last sent a message."""
        for model, row in list(self.rows.items()):
            gone = row.for_want_of & heard_at.keys()
            if not any(heard_at[node] <= row.at + STILL_HEARD_S for node in gone):
                continue
            recent = self.failures.get(row.instance, [])
            if row.at in recent:
                recent.remove(row.at)
            row.count, row.waits_until, row.for_want_of = row.count - 1, 0.0, frozenset()
            if not row.count:
                del self.rows[model]

    def next_at(self, model: ModelId) -> float:
        """Return when a model may be tried again, by this leader's clock; 0 if nothing failed."""
        row = self.rows.get(model)
        return 0.0 if row is None else row.waits_until

    def note_ready(self, instance: InstanceId, now: float) -> None:
        """Record that a rank of an instance is ready."""
        self.ready_at[instance] = now

    def note_serves(self, instance: Instance) -> None:
        """Record that all ranks of an instance are ready. This ends the pause of the model's other
        instances."""
        row = self.rows.get(instance.model)
        if row is not None and row.instance != instance.instance:
            row.waits_until = 0.0

    def forget(self, instance: Instance, now: float) -> None:
        """Drop the failures of a removed instance, and of its model if the instance was healthy."""
        self.failures.pop(instance.instance, None)
        if now - self.ready_at.pop(instance.instance, now) >= WELL_S:
            self.rows.pop(instance.model, None)

    def expire(self, instances: Iterable[Instance], now: float) -> None:
        """Drop the failures of models with a healthy instance, and old ones."""
        for instance in instances:
            is_well = now - self.ready_at.get(instance.instance, now) >= WELL_S
            if instance.status == "ready" and is_well:
                self.rows.pop(instance.model, None)
        self.rows = {model: row for model, row in self.rows.items() if now - row.at < OLD_S}

    # --- what is in the state ---

    def setbacks(
        self, replica_at: Mapping[ModelId, float], wall_s: float
    ) -> dict[ModelId, Setbacks]:
        """Return the failure records that the next leader needs. `replica_at`: until when models
        get no replica. `wall_s`: how far the wall clock is ahead of this leader's clock."""
        setbacks: dict[ModelId, Setbacks] = {}
        for model in {*self.rows, *replica_at}:
            row, at = self.rows.get(model), replica_at.get(model)
            setback = Setbacks(model=model, replica_at_s=0.0 if at is None else at + wall_s)
            if row is not None:
                recent = self.failures.get(row.instance) or [row.at]
                more = {
                    "in_a_row": row.count,
                    "instance": row.instance,
                    "generation": row.generation,
                    "failed_at_s": tuple(when + wall_s for when in recent[-LIMIT:]),
                    "again_at_s": row.waits_until + wall_s if row.waits_until else 0.0,
                    "for_want_of": tuple(sorted(row.for_want_of)),
                    "on": tuple(
                        NodeSetback(
                            node=node,
                            in_a_row=there.count,
                            until_s=there.until + wall_s,
                            why=there.why,
                        )
                        for node, there in sorted(row.on.items())
                    ),
                }
                setback = setback.model_copy(update=more)
            setbacks[model] = setback
        return setbacks

    def recall(self, stored: Iterable[Setbacks], now: float, wall_s: float) -> None:
        """Take over the failure records that earlier leaders stored. The clocks of machines differ,
        so failures in the future count as failures now, and pauses are limited to the maximum."""
        for setback in stored:
            if not setback.in_a_row:
                continue
            failed = [min(now, at_s - wall_s) for at_s in setback.failed_at_s] or [now]
            longest = now + max(self.longest_pause_s, RETRY_FAILED_S)
            waits_until = min(longest, max(0.0, setback.again_at_s - wall_s))
            nodes = frozenset(setback.for_want_of)
            self.rows[setback.model] = FailedRow(
                setback.in_a_row,
                waits_until,
                failed[-1],
                setback.instance,
                setback.generation,
                nodes,
            )
            self.rows[setback.model].on = {
                there.node: NodeRow(there.in_a_row, min(longest, there.until_s - wall_s), there.why)
                for there in setback.on
            }
            self.failures[setback.instance] = failed


def _place_of(instance: Instance, exit_code: int | None, node: NodeId | None) -> NodeId | None:
    """Return the node on which an instance failed; None if it may have been any node of its
    group."""
    if exit_code == GROUP_LOST:
        return None
    return instance.shards[0].node if len(instance.shards) == 1 else node


def pause_s(instance: Instance) -> float:
    """Return for how many seconds after a failure the model of a failed instance is not placed
    again on demand."""
    again = instance.place_again
    excludes = again is not None and again.excluded_nodes != instance.conditions.excluded_nodes
    return RETRY_REFUSED_S if excludes else RETRY_FAILED_S


def news_of(current: Mapping[ModelId, Setbacks], stored: Mapping[str, Setbacks]) -> list[Setbacks]:
    """Return the changes that turn the `stored` records into the `current` ones."""
    gone = [
        Setbacks(model=setbacks.model)
        for setbacks in stored.values()
        if setbacks.model not in current
    ]
    return gone + [
        setbacks
        for setbacks in current.values()
        if _gist(stored.get(setbacks.model)) != _gist(setbacks)
    ]


def _gist(setbacks: Setbacks | None) -> tuple[object, ...]:
    """Return the fields by which two records are compared, without their times: these differ by the
    drift of the two clocks."""
    if setbacks is None:
        return ()
    nodes = tuple((there.node, there.in_a_row) for there in setbacks.on)
    return (
        setbacks.in_a_row,
        setbacks.replica_at_s > 0,
        setbacks.instance,
        setbacks.generation,
        nodes,
    )
