"""Replicas of models under load: decides which instances are replicas, when a new one is due, and
when one ends.

Pure. An instance is a replica if it was added because the others were overloaded, as long as
another one answers. It gets no reservation: it uses memory that is free while nothing waits, is
evicted at once for other claims, and ends when its load is gone. Overload and quiet are measured
over time: each second adds or subtracts one, so that a short pause decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from bus.replica.state import ClusterState
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance
from bus.wire.messages.readings import ModelDemand
from master.pool.settings import PoolSettings
from master.pool.turns import Copy

FAILED_PAUSE_S = 600.0
"""After a replica has failed, its model gets no other replica for this many seconds."""
LONGEST_LOOK_S = 2.0
"""A longer time between two updates of a meter counts as this many seconds."""
LIVING = ("placed", "ready")


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """The load on a model's `copies`, the number of its instances that take requests. `rows`:
    requests that are open at their runners or wait at gateways."""

    copies: int
    rows: int

    def is_heavy(self, settings: PoolSettings) -> bool:
        """Return whether there are at least `replica_rows` requests per instance."""
        return self.rows >= settings.replica_rows * self.copies

    def is_light(self, settings: PoolSettings) -> bool:
        """Return whether the model would have at most half of `replica_rows` requests per instance
        if it had one instance less."""
        return 2 * self.rows <= settings.replica_rows * (self.copies - 1)


@dataclass(slots=True)
class LoadMeters:
    """For each model: how long it has been overloaded or nearly idle, in seconds that rise and
    fall, and until when it gets no replica after one has failed. Times are by the leader's clock; a
    new leader starts at zero."""

    heavy_s: dict[ModelId, float] = field(default_factory=dict[ModelId, float])
    light_s: dict[ModelId, float] = field(default_factory=dict[ModelId, float])
    paused_until: dict[ModelId, float] = field(default_factory=dict[ModelId, float])
    looked_at: float | None = None

    def look(self, loads: Mapping[ModelId, ModelLoad], settings: PoolSettings, now: float) -> None:
        """Update the meters with the loads since the last call; models without an instance are
        dropped."""
        passed_s = 0.0 if self.looked_at is None else min(now - self.looked_at, LONGEST_LOOK_S)
        self.looked_at = now
        heavy = {model: load.is_heavy(settings) for model, load in loads.items()}
        light = {model: load.is_light(settings) for model, load in loads.items()}
        self.heavy_s = _moved(self.heavy_s, heavy, passed_s, settings.replica_after_s)
        self.light_s = _moved(self.light_s, light, passed_s, settings.replica_gone_s)
        self.paused_until = {m: at for m, at in self.paused_until.items() if at > now}

    def changed(self, model: ModelId) -> None:
        """Restart a model's meters, because its instances changed."""
        self.heavy_s.pop(model, None)
        self.light_s.pop(model, None)

    def removed(self, gone: Instance, now: float) -> None:
        """Record that an instance was removed; `gone` is its last state. If it was a replica and
        was not draining, it has failed."""
        self.changed(gone.model)
        if gone.replica and gone.status != "draining":
            self.paused_until[gone.model] = now + FAILED_PAUSE_S

    def recall(self, paused_until: Mapping[ModelId, float], now: float) -> None:
        """Take over, from the last leader, until when models get no replica (by this leader's
        clock)."""
        longest = now + FAILED_PAUSE_S
        self.paused_until = {m: min(at, longest) for m, at in paused_until.items() if at > now}

    def is_due(self, model: ModelId, settings: PoolSettings) -> bool:
        """Return whether a model has been overloaded for long enough to get a replica."""
        lasted = model in self.heavy_s and self.heavy_s[model] >= settings.replica_after_s
        return lasted and model not in self.paused_until

    def is_over(self, model: ModelId, settings: PoolSettings) -> bool:
        """Return whether a model has been nearly idle for long enough to lose a replica."""
        return model in self.light_s and self.light_s[model] >= settings.replica_gone_s


def replicas_in(
    instances: Iterable[Instance], quiet: Collection[NodeId] = ()
) -> dict[InstanceId, str]:
    """Return the replicas among these instances, with the reason of each. An instance that was
    added as a replica counts as none while no other instance of its model answers; instances on
    `quiet` nodes may not answer."""
    came: dict[ModelId, list[Instance]] = {}
    answers: dict[ModelId, list[Instance]] = {}
    for instance in instances:
        if not instance.serves or instance.status == "failed":
            continue
        if instance.replica:
            came.setdefault(instance.model, []).append(instance)
        is_quiet = any(shard.node in quiet for shard in instance.shards)
        if instance.status == "ready" and not instance.yields_to and not is_quiet:
            answers.setdefault(instance.model, []).append(instance)
    replicas: dict[InstanceId, str] = {}
    for model, some in came.items():
        stays = min(answers.get(model, ()), key=lambda copy: bool(copy.replica), default=None)
        if stays is not None:
            replicas |= {copy.instance: copy.replica for copy in some if copy is not stays}
    return replicas


def loads_of(
    copies: Iterable[Copy], demand: Mapping[ModelId, ModelDemand]
) -> dict[ModelId, ModelLoad]:
    """Return the load on each model's instances that take requests, as far as it was reported."""
    loads: dict[ModelId, ModelLoad] = {}
    for copy in copies:
        instance, use = copy.instance, copy.use
        if instance.status != "ready" or instance.yields_to or not instance.serves:
            continue
        wait = demand.get(instance.model)
        waits = 0 if wait is None else wait.waiting
        load = loads.get(instance.model, ModelLoad(0, waits))
        rows = 0 if use is None else use.open_requests
        loads[instance.model] = ModelLoad(load.copies + 1, load.rows + rows)
    return loads


def due(
    state: ClusterState,
    loads: Mapping[ModelId, ModelLoad],
    meters: LoadMeters,
    settings: PoolSettings,
) -> list[ModelId]:
    """Return the models that should get one more instance, the one with most requests per instance
    first. A model is left out while one of its instances is loading or being unloaded."""
    models: list[ModelId] = []
    for model, load in loads.items():
        there = [
            instance
            for instance in state.instances.values()
            if instance.model == model and instance.serves and instance.status != "failed"
        ]
        if len(there) == load.copies <= settings.replicas and meters.is_due(model, settings):
            models.append(model)
    return sorted(models, key=lambda model: -loads[model].rows / loads[model].copies)


def over(
    state: ClusterState,
    replicas: Mapping[InstanceId, str],
    meters: LoadMeters,
    settings: PoolSettings,
) -> dict[InstanceId, str]:
    """Return the replicas that should end, with the reasons: replicas beyond the number in the
    settings, and the newest replica of each model that was nearly idle for long enough."""
    ending: dict[InstanceId, str] = {}
    stay: dict[ModelId, list[Instance]] = {}
    for instance in state.instances.values():
        if instance.instance in replicas and instance.status in LIVING and not instance.yields_to:
            stay.setdefault(instance.model, []).append(instance)
    for model, some in stay.items():
        beyond = f"pool.replicas is {settings.replicas}"
        ending |= {copy.instance: beyond for copy in some[settings.replicas :]}
        if meters.is_over(model, settings) and len(some) <= settings.replicas:
            ending[some[-1].instance] = (
                f"{model} had little load for {settings.replica_gone_s:.0f} s"
            )
    return ending


def _moved(
    seconds: Mapping[ModelId, float], rises: Mapping[ModelId, bool], passed_s: float, most_s: float
) -> dict[ModelId, float]:
    return {
        model: min(most_s, max(0.0, seconds.get(model, 0.0) + (passed_s if up else -passed_s)))
        for model, up in rises.items()
    }
