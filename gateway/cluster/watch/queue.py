"""What waits in the whole cluster, by priority: at gateways for a copy, at runners for a row.

Pure. Of those at a runner only the most urgent priority is known, and not for how long they wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from typing_extensions import TypedDict

from bus.wire.instances import Instance
from bus.wire.messages.readings import ClassDemand, DemandReading, ModelDemand, RunnerReading
from gateway.cluster.readings import ClusterReadings


class QueueRow(TypedDict):
    """What waits of one priority for one model, at gateways or at runners; `oldest_s` is null where
    it is not known."""

    priority: int
    model: str
    at: Literal["gateway", "runner"]
    waiting: int
    oldest_s: float | None


def queue_of(
    readings: ClusterReadings, instances: Mapping[str, Instance], now: float
) -> list[QueueRow]:
    """Return a row for each priority, model and place, most urgent first, then the oldest:
    `priority`, `model`, `at` (gateway or runner), `waiting`, `oldest_s` (None: not known)."""
    rows = [*_at_gateways(readings.demands(now)), *_at_runners(readings.serving(instances, now))]
    return sorted(rows, key=lambda one: (one["priority"], -(one["oldest_s"] or 0.0), one["model"]))


def _at_gateways(demands: Iterable[DemandReading]) -> Iterable[QueueRow]:
    found: dict[tuple[int, str], QueueRow] = {}
    for reading in demands:
        for model in reading.models:
            for one in model.classes or (_unclassed(model),):
                row = found.setdefault(
                    (one.priority, model.model), _row(one.priority, model.model, "gateway")
                )
                row["waiting"] += one.waiting
                row["oldest_s"] = max(row["oldest_s"] or 0.0, round(one.oldest_s, 3))
    return found.values()


def _unclassed(model: ModelDemand) -> ClassDemand:
    """Return the demand of a gateway that does not tell priorities apart."""
    return ClassDemand(priority=model.best_priority, waiting=model.waiting, oldest_s=model.oldest_s)


def _at_runners(leads: Iterable[RunnerReading]) -> Iterable[QueueRow]:
    found: dict[tuple[int, str], QueueRow] = {}
    for lead in leads:
        if not lead.waiting or lead.best_waiting_priority is None or lead.model is None:
            continue
        key = (lead.best_waiting_priority, lead.model)
        row = found.setdefault(key, _row(*key, "runner"))
        row["waiting"] += lead.waiting
    return found.values()


def _row(priority: int, model: str, at: Literal["gateway", "runner"]) -> QueueRow:
    return {"priority": priority, "model": model, "at": at, "waiting": 0, "oldest_s": None}
