"""Further copies of what is asked for without end: which copies are such, when one is due or over.

Pure. A replica is a copy that came because the others had too much to do, as long as its model has
another one that answers. It is promised nothing: it comes only into room that is free while nothing
waits for memory, yields at once to what wants its room, and goes by itself when its load has
gone. Load and quiet are measured over time: a second of it adds one, a second without takes one
away, so that a moment's pause decides nothing.
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
"""A model whose replica failed gets no other one for so long."""
LONGEST_LOOK_S = 2.0
"""What is not looked at for longer counts as so long."""
LIVING = ("placed", "ready")


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What a model's `copies` that take requests have to do: `rows` are the requests that are open
    at their runners or wait at gateways."""

    copies: int
    rows: int

    def is_heavy(self, settings: PoolSettings) -> bool:
        """Return whether each copy has its share of rows."""
        return self.rows >= settings.replica_rows * self.copies

    def is_light(self, settings: PoolSettings) -> bool:
        """Return whether one copy less would have at most half of its share of rows."""
        return 2 * self.rows <= settings.replica_rows * (self.copies - 1)


@dataclass(slots=True)
class LoadMeters:
    """For how long models have been under load, and had little to do, in seconds that rise and
    fall; and until when those whose replicas failed get none. By the holder's own clock: a new
    holder begins anew."""

    heavy_s: dict[ModelId, float] = field(default_factory=dict[ModelId, float])
    light_s: dict[ModelId, float] = field(default_factory=dict[ModelId, float])
    paused_until: dict[ModelId, float] = field(default_factory=dict[ModelId, float])
    looked_at: float | None = None

    def look(self, loads: Mapping[ModelId, ModelLoad], settings: PoolSettings, now: float) -> None:
        """Take what models have to do since the last look; one that has no copy is forgotten."""
        passed_s = 0.0 if self.looked_at is None else min(now - self.looked_at, LONGEST_LOOK_S)
        self.looked_at = now
        heavy = {model: load.is_heavy(settings) for model, load in loads.items()}
        light = {model: load.is_light(settings) for model, load in loads.items()}
        self.heavy_s = _moved(self.heavy_s, heavy, passed_s, settings.replica_after_s)
        self.light_s = _moved(self.light_s, light, passed_s, settings.replica_gone_s)
        self.paused_until = {m: at for m, at in self.paused_until.items() if at > now}

    def changed(self, model: ModelId) -> None:
        """Begin to measure a model anew, for its copies are others now."""
        self.heavy_s.pop(model, None)
        self.light_s.pop(model, None)

    def removed(self, gone: Instance, now: float) -> None:
        """Note that a copy is gone, as it was before. A replica that was not told to go failed."""
        self.changed(gone.model)
        if gone.replica and gone.status != "draining":
            self.paused_until[gone.model] = now + FAILED_PAUSE_S

    def recall(self, paused_until: Mapping[ModelId, float], now: float) -> None:
        """Take up until when models get no replica, by this holder's clock."""
        longest = now + FAILED_PAUSE_S
        self.paused_until = {m: min(at, longest) for m, at in paused_until.items() if at > now}

    def is_due(self, model: ModelId, settings: PoolSettings) -> bool:
        """Return whether a model has been under load for long enough."""
        lasted = model in self.heavy_s and self.heavy_s[model] >= settings.replica_after_s
        return lasted and model not in self.paused_until

    def is_over(self, model: ModelId, settings: PoolSettings) -> bool:
        """Return whether a model has had little to do for long enough."""
        return model in self.light_s and self.light_s[model] >= settings.replica_gone_s


def replicas_in(
    instances: Iterable[Instance], quiet: Collection[NodeId] = ()
) -> dict[InstanceId, str]:
    """Return the copies that are replicas, with why each came. A copy that came as one is none
    while its model has no other that answers; `quiet` are nodes whose copies may not."""
    came: dict[ModelId, list[Instance]] = {}
    answers: dict[ModelId, list[Instance]] = {}
    for one in instances:
        if not one.serves or one.status == "failed":
            continue
        if one.replica:
            came.setdefault(one.model, []).append(one)
        is_quiet = any(shard.node in quiet for shard in one.shards)
        if one.status == "ready" and not one.yields_to and not is_quiet:
            answers.setdefault(one.model, []).append(one)
    found: dict[InstanceId, str] = {}
    for model, some in came.items():
        stays = min(answers.get(model, ()), key=lambda one: bool(one.replica), default=None)
        if stays is not None:
            found |= {one.instance: one.replica for one in some if one is not stays}
    return found


def loads_of(
    copies: Iterable[Copy], demand: Mapping[ModelId, ModelDemand]
) -> dict[ModelId, ModelLoad]:
    """Return what each model's copies that take requests have to do, as far as that is heard."""
    found: dict[ModelId, ModelLoad] = {}
    for copy in copies:
        instance, use = copy.instance, copy.use
        if instance.status != "ready" or instance.yields_to or not instance.serves:
            continue
        wait = demand.get(instance.model)
        waits = 0 if wait is None else wait.waiting
        known = found.get(instance.model, ModelLoad(0, waits))
        rows = 0 if use is None else use.open_requests
        found[instance.model] = ModelLoad(known.copies + 1, known.rows + rows)
    return found


def due(
    state: ClusterState,
    loads: Mapping[ModelId, ModelLoad],
    meters: LoadMeters,
    settings: PoolSettings,
) -> list[ModelId]:
    """Return the models that may have one copy more; the one with the most rows a copy first. None
    of which a copy loads or leaves."""
    found: list[ModelId] = []
    for model, load in loads.items():
        there = [
            one
            for one in state.instances.values()
            if one.model == model and one.serves and one.status != "failed"
        ]
        if len(there) == load.copies <= settings.replicas and meters.is_due(model, settings):
            found.append(model)
    return sorted(found, key=lambda model: -loads[model].rows / loads[model].copies)


def over(
    state: ClusterState,
    replicas: Mapping[InstanceId, str],
    meters: LoadMeters,
    settings: PoolSettings,
) -> dict[InstanceId, str]:
    """Return the replicas that go by themselves, and why: those beyond the setting, and of a model
    whose load has gone the one that came last."""
    found: dict[InstanceId, str] = {}
    stay: dict[ModelId, list[Instance]] = {}
    for one in state.instances.values():
        if one.instance in replicas and one.status in LIVING and not one.yields_to:
            stay.setdefault(one.model, []).append(one)
    for model, some in stay.items():
        beyond = f"pool.replicas is {settings.replicas}"
        found |= {one.instance: beyond for one in some[settings.replicas :]}
        if meters.is_over(model, settings) and len(some) <= settings.replicas:
            found[some[-1].instance] = (
                f"little was asked of {model} for {settings.replica_gone_s:.0f} s"
            )
    return found


def _moved(
    known: Mapping[ModelId, float], rises: Mapping[ModelId, bool], passed_s: float, most_s: float
) -> dict[ModelId, float]:
    return {
        model: min(most_s, max(0.0, known.get(model, 0.0) + (passed_s if up else -passed_s)))
        for model, up in rises.items()
    }
