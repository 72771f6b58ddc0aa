"""Talks to the service: makes the entries for tasks and providers' models in lists of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gateway.dialects.api_table import ModelListing
from gateway.dialects.faults import HttpFaultRaised
from gateway.exchange import Parts

OfModel = Callable[[str], ModelListing]
"""A function that returns the listing of a model of the cluster by its name. Raises HttpFaultRaised
(404)."""


def listings_of(parts: Parts, models: Mapping[str, ModelListing]) -> dict[str, ModelListing]:
    """Return the entries of all tasks and providers' models, by id. `models` has the listings of
    the cluster's models."""
    table = parts.tasks.table
    listings: dict[str, ModelListing] = {}
    if not table:
        return listings

    def of_model(name: str) -> ModelListing:
        """Return the listing of a model; an empty listing if the cluster does not have the
        model."""
        return models.get(name) or _bare(parts, name)

    for model in table.provided_models():
        listings[model.name] = _bare(parts, model.name)
    for name in table.tasks:
        listings[name] = listing_named(parts, name, of_model)
    return listings


def listing_named(parts: Parts, name: str, of_model: OfModel) -> ModelListing:
    """Return the listing of a task or of a provider's model. The listing of a task is that of its
    first candidate, with the instances of all candidates."""
    table = parts.tasks.table
    task = table.task_named(name)
    if task is None:
        return _bare(parts, name)
    candidates: list[ModelListing] = []
    for candidate in table.tasks[task].candidates:
        if table.provided(candidate) is not None:
            candidates.append(_bare(parts, candidate))
            continue
        try:
            candidates.append(of_model(candidate))
        except HttpFaultRaised:
            candidates.append(_bare(parts, candidate))
    loaded = tuple(instance for listing in candidates for instance in listing.loaded)
    return replace(candidates[0], id=task, loaded=loaded)


def _bare(parts: Parts, name: str) -> ModelListing:
    return ModelListing(id=name, size_bytes=0, modified_at_s=parts.tasks.changed_at_s)
