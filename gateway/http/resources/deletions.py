"""Talks to clients: deletes models from the disks of nodes, by the rules of `shoal rm`.

The bundled model is never deleted, a loaded model has to be unloaded first, and only folders in
this home's own `models` are deleted. The answer is sent once the node no longer lists the model, so
later lists do not have it. A derived model has no files; it is deleted from the cluster's log.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from falcon.asgi import Request, Response
from typing_extensions import TypedDict

from bus.models.held_models import FolderKept
from bus.wire.calls.models import Removal
from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from bus.wire.messages.commands import ForgetDerived
from gateway.cluster import Cluster
from gateway.dialects import api_table, dialect
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.callers import key_behind
from gateway.http.middleware import COMMAND_BYTES, Resource, answer_json, read_body

UNLOADED_S = 30.0
"""How long to wait for an instance that is being unloaded."""
SEEN_S = 1.0
"""How long to wait for an unloading that another HTTP process of this node has answered already."""
NOTICED_S = 30.0
"""How long to wait for the next scan of the disk; a worker scans about once a second."""
LOOK_S = 0.05


@dataclass(frozen=True)
class ModelToDelete(Resource):
    """A path that deletes the model named in a body."""

    endpoint: api_table.DeletesModel

    async def on_delete(self, req: Request, resp: Response) -> None:
        """Delete the model from this node's disk. 409 with the reason if it cannot be deleted."""
        options = self.cluster.options
        body = await read_body(req, COMMAND_BYTES, options.body_s)
        request = self.endpoint.parse(
            body, dialect.Limits(depth=options.body_depth, strict_fields=True)
        )
        await self.cluster.catalog.wait_known()
        catalog = self.cluster.catalog
        if await _forget_derived(self.cluster, request.name):
            return
        model = catalog.named(request.name)
        _check_no_adapter(self.cluster, request.name, model)
        card = self._card_here(model)
        await self._wait_until_unloaded(model)
        try:
            await self.cluster.removals.here(model)
        except FolderKept as error:
            raise _conflict(f"{error.message}; {error.remedy}".removesuffix("; ")) from error
        await self._wait_until_unlisted(model, card)

    def _card_here(self, model: ModelId) -> ModelCard:
        """Return the card of the model on this disk. Raises HttpFaultRaised (409) if the model
        cannot be deleted."""
        card = self.cluster.catalog.card_here(model)
        if card is None:
            raise _conflict(f"{model} is not on this node's disk; use a node that has it")
        if card.bundled:
            raise _conflict(
                f"{model} is part of shoal and cannot be deleted; it takes at most 10 MB"
            )
        if not self.cluster.options.models_folder:
            raise _conflict("this gateway has no models folder")
        return card

    async def _wait_until_unloaded(self, model: ModelId) -> None:
        """Wait for instances that are being unloaded. Raises HttpFaultRaised (409) if one stays."""
        began_at = self.cluster.reactor.now()
        while True:
            waited_s = self.cluster.reactor.now() - began_at
            held = [
                instance
                for instance in self.cluster.bus.state.instances.values()
                if instance.model == model and instance.status != "failed"
            ]
            if not held:
                return
            stays = any(instance.status != "draining" for instance in held)
            if waited_s >= (SEEN_S if stays else UNLOADED_S):
                names = ", ".join(instance.instance for instance in held)
                text = f"{model} is loaded ({names}); unload it with `shoal stop {model}` or with "
                raise _conflict(f"{text}a request without a prompt and with keep_alive 0")
            await asyncio.sleep(LOOK_S)

    async def _wait_until_unlisted(self, model: ModelId, card: ModelCard) -> None:
        """Wait until the node no longer lists the folder, at most `NOTICED_S`."""
        give_up_at = self.cluster.reactor.now() + NOTICED_S
        while self.cluster.reactor.now() < give_up_at:
            latest = self.cluster.catalog.card_here(model)
            if latest is None or latest.path != card.path:
                return
            await asyncio.sleep(LOOK_S)


class DeletedAnswer(TypedDict):
    """The deleted model; `nodes` are the nodes that had it, with each result."""

    model: str
    nodes: list[Removal]


class ModelEverywhere(Resource):
    """`/store/models/{name}`: a model on the disks of all nodes."""

    async def on_delete(self, req: Request, resp: Response, name: str) -> None:
        """Delete the model from all nodes, and answer with each node's result. 409 if no node could
        delete it."""
        cluster = self.cluster
        await cluster.catalog.wait_known()
        if hold := cluster.removals.why_not_deleted(ModelId(name.removesuffix(":latest"))):
            raise _conflict(hold.words)  # a model that is being pulled is on no disk yet
        model = _of_files(cluster, name)
        removals = await cluster.removals.everywhere(model, key_behind(req))
        if not any(removal.deleted for removal in removals):
            raise _conflict("; ".join(f"{removal.name}: {removal.why}" for removal in removals))
        answer: DeletedAnswer = {"model": model, "nodes": removals}
        answer_json(resp, {**answer, "nodes": [removal.model_dump() for removal in removals]})


class CustomModel(ModelEverywhere):
    """`/models/custom/{name}`: a model that a user added or derived."""

    async def on_delete(self, req: Request, resp: Response, name: str) -> None:
        """Delete a derived model from the cluster's log. Delete any other model from all nodes, as
        `DELETE /store/models/{name}` does."""
        await self.cluster.catalog.wait_known()
        if await _forget_derived(self.cluster, name):
            answer: DeletedAnswer = {"model": name, "nodes": []}
            answer_json(resp, answer)
            return
        await super().on_delete(req, resp, name)


async def _forget_derived(cluster: Cluster, name: str) -> bool:
    """Delete a derived model from the cluster's log; return False if there is none of that name.
    Raises HttpFaultRaised (409) for an alias of a `card.toml`."""
    derived = cluster.catalog.derived(name)
    if derived is None:
        return False
    if derived.name not in cluster.bus.state.derived:
        text = f"{derived.name} is an alias in the card.toml of {derived.base}"
        raise _conflict(f"{text}; remove it from `aliases` there")
    command = ForgetDerived(command_id=cluster.command_id(), name=derived.name)
    await cluster.noticed(await cluster.command(command))
    cluster.log.info("a client deleted a derived model", model=derived.name)
    return True


def _of_files(cluster: Cluster, name: str) -> ModelId:
    """Return the model of exactly this name that is on some disk, whole or in part. Raises
    HttpFaultRaised (404)."""
    model = ModelId(name.removesuffix(":latest"))
    if not cluster.removals.lies_at(model):
        _check_no_adapter(cluster, name, cluster.catalog.named(name))
        text = f"'{name[:200]}' is an alias of another model; see `shoal ls` for that model's name"
        raise HttpFaultRaised(HttpFault(404, "model_not_found", text, "model"))
    return model


def _check_no_adapter(cluster: Cluster, name: str, model: ModelId) -> None:
    """Raise HttpFaultRaised (409) if the name means an adapter of this model."""
    catalog = cluster.catalog
    adapter = catalog.adapters.find(name, catalog.names(), catalog.derived(name))
    if adapter is not None:
        raise _conflict(
            f"{adapter} is an adapter of {model}, not a model; delete the folder "
            f"adapters/{adapter} in the model's folder on its nodes"
        )


def _conflict(why: str) -> HttpFaultRaised:
    return HttpFaultRaised(HttpFault(409, "conflict", why))
