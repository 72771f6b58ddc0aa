"""Talks to clients who delete a model from this node's disk, by the rules of `shoal rm`.

What comes with shoal stays, what is loaded has to be unloaded first, and only a folder in this
home's own `models` is deleted. The answer comes once the node has noticed, so that no listing after
it has the model. A derived model has no files.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from falcon.asgi import Request, Response
from typing_extensions import TypedDict

from bus.held_models import FolderKept
from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from bus.wire.messages.commands import ForgetDerived
from gateway.cluster.removals import Removal
from gateway.dialects import api_table, dialect
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.middleware import COMMAND_BYTES, Resource, answer_json, read_body
from gateway.service import HttpService

UNLOADED_S = 30.0
"""A copy that is being unloaded has so long to be gone."""
NOTICED_S = 30.0
"""A worker looks at its disk each second or so."""
LOOK_S = 0.05


@dataclass(frozen=True)
class ModelToDelete(Resource):
    """A path that deletes the model which a body names."""

    endpoint: api_table.DeletesModel

    async def on_delete(self, req: Request, resp: Response) -> None:
        """Delete it, or say why it stays."""
        options = self.service.options
        body = await read_body(req, COMMAND_BYTES, options.body_s)
        asked = self.endpoint.parse(
            body, dialect.Limits(depth=options.body_depth, strict_fields=True)
        )
        await self.service.catalog.wait_known()
        catalog = self.service.catalog
        if await _forgot_derived(self.service, asked.name):
            return
        model = catalog.named(asked.name)
        _check_no_adapter(self.service, asked.name, model)
        card = self._card_here(model)
        await self._unloaded(model)
        try:
            await self.service.removals.here(model)
        except FolderKept as error:
            raise _kept(f"{error.message}; {error.remedy}".removesuffix("; ")) from error
        await self._noticed(model, card)

    def _card_here(self, model: ModelId) -> ModelCard:
        """Return the card of the model on this disk. Raises HttpFaultRaised for one that stays."""
        card = self.service.catalog.card_here(model)
        if card is None:
            raise _kept(f"{model} is not on this node's disk; use a node that has it")
        if card.bundled:
            raise _kept(f"{model} is part of shoal and cannot be deleted; it takes at most 10 MB")
        if not self.service.options.models_folder:
            raise _kept("this gateway has no models folder")
        return card

    async def _unloaded(self, model: ModelId) -> None:
        """Wait for copies that are being unloaded. Raises HttpFaultRaised for a loaded one."""
        give_up_at = self.service.reactor.now() + UNLOADED_S
        while True:
            held = [
                instance
                for instance in self.service.bus.state.instances.values()
                if instance.model == model and instance.status != "failed"
            ]
            if not held:
                return
            stays = any(one.status != "draining" for one in held)
            if stays or self.service.reactor.now() >= give_up_at:
                names = ", ".join(one.instance for one in held)
                text = f"{model} is loaded ({names}); unload it with `shoal stop {model}` or with "
                raise _kept(f"{text}a request without a prompt and with keep_alive 0")
            await asyncio.sleep(LOOK_S)

    async def _noticed(self, model: ModelId, card: ModelCard) -> None:
        """Wait until the node no longer lists the folder, for a while."""
        give_up_at = self.service.reactor.now() + NOTICED_S
        while self.service.reactor.now() < give_up_at:
            known = self.service.catalog.card_here(model)
            if known is None or known.path != card.path:
                return
            await asyncio.sleep(LOOK_S)


class DeletedAnswer(TypedDict):
    """A model was deleted; `nodes` are those that had it."""

    model: str
    nodes: list[Removal]


class ModelEverywhere(Resource):
    """`/store/models/{name}`: a model on the disks of all nodes."""

    async def on_delete(self, req: Request, resp: Response, name: str) -> None:
        """Delete it from every node, and answer with what came of it at each. 409 where all keep
        it."""
        service = self.service
        await service.catalog.wait_known()
        if kept := service.removals.held(ModelId(name.removesuffix(":latest"))):
            raise _kept(kept.words)  # a model that is being pulled lies nowhere yet
        model = _of_files(service, name)
        found = await service.removals.everywhere(model)
        if not any(one.deleted for one in found):
            raise _kept("; ".join(f"{one.name}: {one.why}" for one in found))
        told: DeletedAnswer = {"model": model, "nodes": found}
        answer_json(resp, told)


class CustomModel(ModelEverywhere):
    """`/models/custom/{name}`: a model that people added or made."""

    async def on_delete(self, req: Request, resp: Response, name: str) -> None:
        """Have the cluster forget one that was made of another; delete any other from every node,
        as `DELETE /store/models/{name}` does."""
        await self.service.catalog.wait_known()
        if await _forgot_derived(self.service, name):
            told: DeletedAnswer = {"model": name, "nodes": []}
            answer_json(resp, told)
            return
        await super().on_delete(req, resp, name)


async def _forgot_derived(service: HttpService, name: str) -> bool:
    """Have the cluster forget a derived model; return False for a name of none. Raises
    HttpFaultRaised."""
    derived = service.catalog.derived(name)
    if derived is None:
        return False
    if derived.name not in service.bus.state.derived:
        text = f"{derived.name} is an alias in the card.toml of {derived.base}"
        raise _kept(f"{text}; remove it from `aliases` there")
    told = ForgetDerived(command_id=service.command_id(), name=derived.name)
    await service.noticed(await service.command(told))
    service.log.info("a client deleted a derived model", model=derived.name)
    return True


def _of_files(service: HttpService, name: str) -> ModelId:
    """Return the model that lies on some disk, whole or in part, under exactly this name. Raises
    HttpFaultRaised (404)."""
    model = ModelId(name.removesuffix(":latest"))
    if not service.removals.lies_at(model):
        _check_no_adapter(service, name, service.catalog.named(name))
        text = f"'{name[:200]}' is an alias of another model; see `shoal ls` for its own name"
        raise HttpFaultRaised(HttpFault(404, "model_not_found", text, "model"))
    return model


def _check_no_adapter(service: HttpService, name: str, model: ModelId) -> None:
    """Raise HttpFaultRaised (409) where a name of this model means one of its adapters."""
    catalog = service.catalog
    adapter = catalog.adapters.meant(name, catalog.names(), catalog.derived(name))
    if adapter is not None:
        raise _kept(
            f"{adapter} is an adapter of {model}, not a model; delete the folder "
            f"adapters/{adapter} in the model's folder on its nodes"
        )


def _kept(why: str) -> HttpFaultRaised:
    return HttpFaultRaised(HttpFault(409, "conflict", why))
