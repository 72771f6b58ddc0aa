"""Talks to clients: lists, describes and derives models, in the format of every API."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from falcon.asgi import Request, Response

from bus.models.gguf import DTYPE
from bus.process.clock import wall
from bus.wire.cards import AdapterCard, ModelCard, model_named
from bus.wire.ids import ModelId
from bus.wire.instances import Instance
from bus.wire.messages.commands import DeriveModel
from bus.wire.messages.derived import DerivedModel
from gateway.cluster import Cluster
from gateway.control.model_files import ModelFiles, read_model_files
from gateway.dialects import api_table, dialect
from gateway.dialects.faults import HttpFault, HttpFaultRaised, unknown_adapter
from gateway.exchange import Parts, tell_ignored
from gateway.http.middleware import COMMAND_BYTES, Resource, read_body
from gateway.http.resources.task_listings import listing_named, listings_of

_OF_COPY = {"name": ModelId("copy"), "base": ModelId("copy"), "parent": "", "made_at_s": 0.0}
_COPY = vars(DerivedModel.model_validate(_OF_COPY))
"""The fields that a derived model has if it only renames its base. They are computed once, because
lists are requested often."""


@dataclass(frozen=True)
class ModelList(Resource):
    """A path that lists all models, in its API's shape."""

    endpoint: api_table.ListsModels

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with all models, ordered by id."""
        cluster, parts = self.cluster, self.parts
        if self.endpoint.waits:
            await cluster.catalog.wait_known()
        resp.data = self.endpoint.render(listings(cluster, parts, req), wall())


@dataclass(frozen=True)
class ModelPages(Resource):
    """A path that lists models in pages, in its API's shape."""

    endpoint: api_table.PagesModels

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the page that the query selects."""
        await self.cluster.catalog.wait_known()
        parameters = req.params.items()
        query = {name: value if isinstance(value, str) else value[-1] for name, value in parameters}
        resp.data = self.endpoint.render(listings(self.cluster, self.parts, req), query)


@dataclass(frozen=True)
class ByHeader:
    """A path shared by two APIs: the resource `marked` answers requests with `header`."""

    header: str
    marked: Any
    other: Any

    async def on_get(self, req: Request, resp: Response, **named: str) -> None:
        """Answer with the resource that the header selects."""
        answers = self.other if req.get_header(self.header) is None else self.marked
        await answers.on_get(req, resp, **named)


@dataclass(frozen=True)
class ModelOfPath(Resource):
    """A path that describes the model named in it; a name may contain a slash."""

    endpoint: api_table.ShowsModel

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        """Describe one model."""
        resp.data = await _shown(self.cluster, self.parts, self.endpoint.render, name)


@dataclass(frozen=True)
class ModelOfBody(Resource):
    """A path that describes the model named in a body."""

    endpoint: api_table.ShowsAsked

    async def on_post(self, req: Request, resp: Response) -> None:
        """Describe one model; with the facts of its files, if this node has them."""
        options = self.cluster.options
        body = await read_body(req, COMMAND_BYTES, options.body_s)
        limits = dialect.Limits(depth=options.body_depth, strict_fields=options.strict_fields)
        request = self.endpoint.parse(body, limits)
        tell_ignored(self.parts, resp, self.endpoint.path, request.ignored)
        cluster, parts = self.cluster, self.parts
        await cluster.catalog.wait_known()
        listing = _listing_named(cluster, parts, request.name)
        own = None
        if not parts.tasks.table.means(request.name):
            own = cluster.catalog.card_here(cluster.catalog.named(request.name))
        if own is not None:
            read = partial(read_model_files, Path(own.path), with_tensors=request.verbose)
            listing = _with_files(listing, await asyncio.to_thread(read))
        resp.data = self.endpoint.render(listing)


@dataclass(frozen=True)
class ModelToDerive(Resource):
    """A path that derives a model from another."""

    endpoint: api_table.DerivesModel

    async def on_post(self, req: Request, resp: Response) -> None:
        """Store the derived model in the cluster's log. Answer once this process lists it. 409 if
        the name is taken."""
        cluster, parts = self.cluster, self.parts
        endpoint = self.endpoint
        options = cluster.options
        body = await read_body(req, COMMAND_BYTES, options.body_s)
        limits = dialect.Limits(depth=options.body_depth, strict_fields=options.strict_fields)
        request = endpoint.parse(body, limits)
        tell_ignored(parts, resp, endpoint.path, request.ignored)
        await cluster.catalog.wait_known()
        meant = model_named(request.name, cluster.catalog.names())
        if meant is not None:
            text = f"'{request.name}' already names the model {meant}; choose another name"
            raise HttpFaultRaised(HttpFault(409, "conflict", text, "model"))
        base = cluster.catalog.named(request.source)
        source = cluster.catalog.derived(request.source)
        adapters = cluster.catalog.adapters
        adapter = request.adapter or adapters.find(request.source, cluster.catalog.names(), source)
        if adapter and adapter not in (own := adapters.beside(base)):
            raise HttpFaultRaised(unknown_adapter(adapter, base, adapter, own))
        derived = endpoint.derive(request, base, source, wall())
        derived = derived.model_copy(update={"adapter": adapter or ""})
        command = DeriveModel(command_id=cluster.command_id(), derived=derived)
        await cluster.noticed(await cluster.command(command))
        cluster.log.info("a client derived a model", model=derived.name, base=base)
        resp.data = b"".join(endpoint.lines[-1:])
        if request.stream:
            resp.content_type = endpoint.streams
            resp.data = b"".join(line + b"\n" for line in endpoint.lines)


async def _shown(
    cluster: Cluster, parts: Parts, render: Callable[[api_table.ModelListing], bytes], name: str
) -> bytes:
    await cluster.catalog.wait_known()
    return render(_listing_named(cluster, parts, name))


def _with_files(listing: api_table.ModelListing, files: ModelFiles) -> api_table.ModelListing:
    return replace(
        listing,
        template=files.template,
        license=listing.license or files.license,
        config=files.config,
        tensors=tuple((tensor.name, tensor.dtype, tensor.shape) for tensor in files.tensors),
    )


def listings(cluster: Cluster, parts: Parts, req: Request) -> list[api_table.ModelListing]:
    """Return the listings of all models, ordered by id: models on disk, derived models, models with
    an adapter, tasks and providers' models."""
    cards = cluster.catalog.cards()
    names = sorted(cluster.catalog.names())
    models = [_listing(cluster, name, cards.get(name)) for name in names]
    of_names = dict(zip(names, models, strict=True))
    derived = (_derived(of_names[own.base], own) for own in cluster.catalog.derived_here())
    adapters = (
        _adapted(of_names[model], adapter)
        for model, own in cluster.catalog.adapters.by_model().items()
        for adapter in own.values()
    )
    listed = {listing.id: listing for listing in (*models, *derived, *adapters)}
    listed |= listings_of(parts, listed)
    return sorted(listed.values(), key=lambda listing: listing.id)


def _listing_named(cluster: Cluster, parts: Parts, name: str) -> api_table.ModelListing:
    """Return the listing of the model that a client's name means. Raises HttpFaultRaised (404)."""
    if parts.tasks.table.means(name):
        return listing_named(parts, name, partial(_listing_of_model, cluster))
    return _listing_of_model(cluster, name)


def _listing_of_model(cluster: Cluster, name: str) -> api_table.ModelListing:
    model = cluster.catalog.named(name)
    catalog = cluster.catalog
    card = catalog.cards().get(model)
    listing = _listing(cluster, model, card)
    derived = catalog.derived(name)
    adapter = catalog.adapters.find(name, catalog.names(), derived)
    if adapter is not None and (beside := catalog.adapters.beside(model).get(adapter)):
        listing = _adapted(listing, beside)
    if derived is not None:
        return _derived(listing, derived)
    own = None if card is None else card.defaults
    return listing if own is None else replace(listing, derived=own)


def _adapted(base: api_table.ModelListing, adapter: AdapterCard) -> api_table.ModelListing:
    digest = hashlib.sha256(f"{base.digest}{adapter.digest}".encode()).hexdigest()
    return replace(
        base,
        id=f"{base.id}:{adapter.name}",
        modified_at_s=float(adapter.modified_at_s),
        digest=digest,
    )


def _derived(base: api_table.ModelListing, derived: DerivedModel) -> api_table.ModelListing:
    """Return the listing of a derived model, based on the listing of its base. If it only renames
    the base, it has the base's digest."""
    digest = base.digest
    if {**vars(derived), **_OF_COPY} != _COPY:
        made = derived.model_copy(update={"name": derived.base, "parent": "", "made_at_s": 0.0})
        digest = hashlib.sha256(f"{digest}{made.model_dump_json()}".encode()).hexdigest()
    return replace(
        base,
        id=derived.name,
        modified_at_s=derived.made_at_s,
        digest=digest,
        max_tokens=derived.max_tokens or base.max_tokens,
        license=derived.license,
        derived=derived,
    )


def _listing(cluster: Cluster, model: ModelId, card: ModelCard | None) -> api_table.ModelListing:
    copies = [
        _loaded(instance, cluster, card)
        for instance in cluster.bus.state.instances.values()
        if instance.model == model and instance.status == "ready" and instance.serves
    ]
    if card is None:
        return api_table.ModelListing(
            id=model, size_bytes=0, modified_at_s=0.0, loaded=tuple(copies)
        )
    return api_table.ModelListing(
        id=model,
        size_bytes=card.size_bytes,
        modified_at_s=float(card.modified_at_s),
        digest=card.digest,
        family=card.family,
        parameters=card.parameters,
        quantization=card.quantization if card.quantization != "none" else card.dtype,
        format="gguf" if card.dtype == DTYPE else "safetensors",
        context_tokens=card.context_tokens,
        capabilities=card.capabilities,
        layers=card.layers,
        vocabulary=card.vocabulary,
        max_tokens=card.default_max_tokens,
        loaded=tuple(copies),
    )


def _loaded(instance: Instance, cluster: Cluster, card: ModelCard | None) -> dialect.LoadedCopy:
    now = cluster.reactor.now()
    reading = cluster.readings.runner_of(instance, now)
    weights = card.weights_bytes if card is not None else 0
    size = max(weights, cluster.readings.memory_of(instance, now))
    expires_at_s = None
    is_pinned = instance.pinned or instance.model in cluster.bus.state.pins
    if instance.keep_alive_s >= 0 and not is_pinned:
        idle_s = reading.last_used_ago_s if reading is not None else 0.0
        expires_at_s = wall() + max(0.0, instance.keep_alive_s - idle_s)
    on_cpu = instance.backend.endswith("-cpu")
    return dialect.LoadedCopy(
        size_bytes=size,
        accelerator_bytes=0 if on_cpu else size,
        context_tokens=instance.context_tokens,
        expires_at_s=expires_at_s,
    )
