"""Talks to the service: tasks and providers' models, as the listings of models tell of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gateway.dialects.api_table import ModelListing
from gateway.dialects.faults import HttpFaultRaised
from gateway.service import HttpService

OfModel = Callable[[str], ModelListing]
"""Tells of a model of the cluster by a client's name. Raises HttpFaultRaised (404)."""


def listings_of(
    service: HttpService, models: Mapping[str, ModelListing]
) -> dict[str, ModelListing]:
    """Return what a list tells beside `models`: the tasks and the providers' models, by id."""
    table = service.tasks.table
    found: dict[str, ModelListing] = {}
    if not table:
        return found

    def of_model(name: str) -> ModelListing:
        """Return what is told of a model here; a model without anything to tell where there is
        none."""
        return models.get(name) or _bare(service, name)

    for model in table.provided_models():
        found[model.name] = _bare(service, model.name)
    for name in table.tasks:
        found[name] = listing_named(service, name, of_model)
    return found


def listing_named(service: HttpService, name: str, of_model: OfModel) -> ModelListing:
    """Return what is told of a task or of a provider's model. Of a task it is what is told of its
    first candidate, and the copies of all that are models of the cluster."""
    table = service.tasks.table
    task = table.task_named(name)
    if task is None:
        return _bare(service, name)
    told: list[ModelListing] = []
    for candidate in table.tasks[task].candidates:
        if table.provided(candidate) is not None:
            told.append(_bare(service, candidate))
            continue
        try:
            told.append(of_model(candidate))
        except HttpFaultRaised:
            told.append(_bare(service, candidate))
    loaded = tuple(copy for one in told for copy in one.loaded)
    return replace(told[0], id=task, loaded=loaded)


def _bare(service: HttpService, name: str) -> ModelListing:
    return ModelListing(id=name, size_bytes=0, modified_at_s=service.tasks.changed_at_s)
