"""Talks to clients about which models are here, in OpenAI's and Ollama's listings."""

from __future__ import annotations

from falcon.asgi import Request, Response

from bus.process.clock import wall
from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from bus.wire.instances import Instance
from bus.wire.messages.readings import RunnerReading
from gateway.dialects import listing
from gateway.dialects.dialect import Limits
from gateway.dialects.listing import LoadedCopy, ModelListing
from gateway.http.middleware import read_body
from gateway.service import HttpService, ServiceHandle


class Listings:
    """What every listing is told from."""

    def __init__(self, handle: ServiceHandle) -> None:
        self._handle = handle

    @property
    def service(self) -> HttpService:
        """This process's service."""
        return self._handle.service

    def all(self) -> list[ModelListing]:
        """All models, by id."""
        service = self.service
        cards = service.catalog.cards()
        return [
            _listing(service, name, cards.get(name)) for name in sorted(service.catalog.names())
        ]

    def one(self, name: str) -> ModelListing:
        """The model that a client means. Raises HttpFaultRaised (404)."""
        model = self.service.catalog.named(name)
        return _listing(self.service, model, self.service.catalog.cards().get(model))


class OpenAIModels:
    """`GET /v1/models`."""

    def __init__(self, listings: Listings) -> None:
        self._listings = listings

    async def on_get(self, req: Request, resp: Response) -> None:
        """All of them."""
        await self._listings.service.catalog.wait_known()
        resp.data = listing.openai_models(self._listings.all())
        resp.content_type = "application/json"


class OpenAIModel:
    """`GET /v1/models/{id}`; an id may hold a slash."""

    def __init__(self, listings: Listings) -> None:
        self._listings = listings

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        """One of them."""
        await self._listings.service.catalog.wait_known()
        resp.data = listing.openai_model(self._listings.one(name))
        resp.content_type = "application/json"


class OllamaTags:
    """`GET /api/tags`."""

    def __init__(self, listings: Listings) -> None:
        self._listings = listings

    async def on_get(self, req: Request, resp: Response) -> None:
        """All of them."""
        await self._listings.service.catalog.wait_known()
        resp.data = listing.ollama_tags(self._listings.all())
        resp.content_type = "application/json"


class OllamaPs:
    """`GET /api/ps`."""

    def __init__(self, listings: Listings) -> None:
        self._listings = listings

    async def on_get(self, req: Request, resp: Response) -> None:
        """Those that are loaded."""
        resp.data = listing.ollama_ps(self._listings.all(), wall())
        resp.content_type = "application/json"


class OllamaShow:
    """`POST /api/show`."""

    def __init__(self, listings: Listings) -> None:
        self._listings = listings

    async def on_post(self, req: Request, resp: Response) -> None:
        """One of them, in detail."""
        options = self._listings.service.options
        body = await read_body(req, options.body_limit_bytes)
        name = listing.parse_show(body, Limits(depth=options.body_depth))
        await self._listings.service.catalog.wait_known()
        resp.data = listing.ollama_show(self._listings.one(name))
        resp.content_type = "application/json"


class OllamaVersion:
    """`GET /api/version`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """The version of Ollama's API that is spoken."""
        resp.data = listing.ollama_version()
        resp.content_type = "application/json"


def _listing(service: HttpService, model: ModelId, card: ModelCard | None) -> ModelListing:
    copies = [
        _loaded(one, service.readings.runner_of(one, service.reactor.now()), card)
        for one in service.bus.state.instances.values()
        if one.model == model and one.status == "ready"
    ]
    if card is None:
        return ModelListing(id=model, size_bytes=0, modified_at_s=0.0, loaded=tuple(copies))
    return ModelListing(
        id=model,
        size_bytes=card.size_bytes,
        modified_at_s=float(card.modified_at_s),
        digest=card.digest,
        family=card.family,
        parameters=card.parameters,
        quantization=card.quantization if card.quantization != "none" else card.dtype,
        context_tokens=card.context_tokens,
        capabilities=card.capabilities,
        loaded=tuple(copies),
    )


def _loaded(
    instance: Instance, reading: RunnerReading | None, card: ModelCard | None
) -> LoadedCopy:
    weights = card.weights_bytes if card is not None else 0
    size = max(weights, reading.active_bytes if reading is not None else 0)
    expires_at_s = None
    if instance.keep_alive_s >= 0 and not instance.pinned:
        idle_s = reading.last_used_ago_s if reading is not None else 0.0
        expires_at_s = wall() + max(0.0, instance.keep_alive_s - idle_s)
    on_cpu = instance.backend.endswith("-cpu")
    return LoadedCopy(
        size_bytes=size,
        accelerator_bytes=0 if on_cpu else size,
        context_tokens=instance.context_tokens,
        expires_at_s=expires_at_s,
    )
