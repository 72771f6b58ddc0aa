"""The cluster's queue by priority: requests that wait at gateways for an instance, and requests
that wait at runners for a row of the batch.

Pure. A runner reports only its most urgent waiting priority, and no waiting times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from typing_extensions import TypedDict

from bus.wire.instances import Instance
from bus.wire.messages.readings import ClassDemand, DemandReading, ModelDemand, RunnerReading
from gateway.view.readings import ClusterReadings


class QueueRow(TypedDict):
    """The requests of one priority that wait for one model, at gateways or at runners. `oldest_s`
    is the longest wait; null if it is unknown."""

    priority: int
    model: str
    at: Literal["gateway", "runner"]
    waiting: int
    oldest_s: float | None


def queue_of(
    readings: ClusterReadings, instances: Mapping[str, Instance], now: float
) -> list[QueueRow]:
    """Return a row for each combination of priority, model and place. The most urgent priority
    comes first; within a priority, the longest wait comes first."""
    rows = [*_at_gateways(readings.demands(now)), *_at_runners(readings.serving(instances, now))]
    return sorted(rows, key=lambda row: (row["priority"], -(row["oldest_s"] or 0.0), row["model"]))


def _at_gateways(demands: Iterable[DemandReading]) -> Iterable[QueueRow]:
    rows: dict[tuple[int, str], QueueRow] = {}
    for reading in demands:
        for model in reading.models:
            for demand in model.classes or (_unclassed(model),):
                row = rows.setdefault(
                    (demand.priority, model.model), _row(demand.priority, model.model, "gateway")
                )
                row["waiting"] += demand.waiting
                row["oldest_s"] = max(row["oldest_s"] or 0.0, round(demand.oldest_s, 3))
    return rows.values()


def _unclassed(model: ModelDemand) -> ClassDemand:
    """Return the demand for a model from a gateway that does not report demand by priority. All its
    requests count as requests of the most urgent priority."""
    return ClassDemand(priority=model.best_priority, waiting=model.waiting, oldest_s=model.oldest_s)


def _at_runners(leads: Iterable[RunnerReading]) -> Iterable[QueueRow]:
    rows: dict[tuple[int, str], QueueRow] = {}
    for lead in leads:
        if not lead.waiting or lead.best_waiting_priority is None or lead.model is None:
            continue
        key = (lead.best_waiting_priority, lead.model)
        row = rows.setdefault(key, _row(*key, "runner"))
        row["waiting"] += lead.waiting
    return rows.values()


def _row(priority: int, model: str, at: Literal["gateway", "runner"]) -> QueueRow:
    return {"priority": priority, "model": model, "at": at, "waiting": 0, "oldest_s": None}
