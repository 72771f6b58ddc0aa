"""Talks to clients about what lies on nodes' disks: how much of it shoal fetched, what would be let
go next, where each model lies, and the word to let go now all that may.

Who may have models let go is who may delete them. A node that is asked goes by its own rules; a dry
run tells what its worker said last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, cast

from falcon.asgi import Request, Response
from pydantic import Field

from bus.wire.cards import ModelCard
from bus.wire.ids import NodeId
from bus.wire.messages.weights import PurgeState, StorageReading, StoredModel
from gateway.cluster.cancels import OwnerSilent
from gateway.cluster.model_files import files_on_disk
from gateway.cluster.pulling import Workers
from gateway.cluster.readings import storage_of
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFault, HttpFaultRaised, owner_silent, unknown_model
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.deletions import ModelEverywhere
from gateway.http.resources.pulls.pull import NAME_CHARACTERS, PullBody, answer_pull
from gateway.http.resources.pulls.stored import (
    CopyOnNode,
    FileOnDisk,
    ModelInStoreAnswer,
    NodeNamed,
    NodeStorage,
    NodeStoreHealth,
    PurgeAnswer,
    PurgedNode,
    RegisteredModel,
    RegistryAnswer,
    StorageAnswer,
    StoreHealthAnswer,
)
from gateway.http.resources.pulls.target import node_named
from gateway.service import HttpService

ALL = "all"
DOWNLOAD = "/download"
"""What some put behind a model that is to come."""
OF_STORES = ("disk_full", "disk_low", "download_failed")
"""Findings of a node's health that are about its store."""
NOT_TOLD = {
    "level": "warn",
    "code": "store_untold",
    "message": "its worker has not reported its disk",
    "remediation": "see `shoal status` on that node (worker)",
}


class PurgeBody(Closed):
    """`POST /store/purge-staging`: `node` is a node by its id or name, `all` are all of them, one
    after the other; without, the one that is asked. `dry_run`: nothing is deleted."""

    node: str | None = None
    dry_run: bool = False


class DownloadBody(Closed):
    """`POST /store/models/{name}`: the model comes to `to`, a node by its id or name; without, to
    the one that is asked. No body is an empty one."""

    to: str | None = None
    revision: str = Field(default="", max_length=200)
    stream: bool = True


class StorageResource(Resource):
    """`GET /store/storage`: what lies on the disks of all nodes."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with each node's bytes by kind, its limit, and its models."""
        told = _readings(self.service)
        answer: StorageAnswer = {"nodes": [_storage(self.service, one) for one in told]}
        answer_json(resp, answer)


class StoreHealth(Resource):
    """`GET /store/health`: whether there is room for models on each node."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with what is wrong with each node's store, and with the worst of all."""
        service = self.service
        readings, now = service.readings, service.reactor.now()
        told = {one.node: one for one in _readings(service)}
        measured = {reading.node: reading for reading, _ in readings.nodes(now)}
        found: list[NodeStoreHealth] = []
        for card in readings.cards(now):
            reading = measured.get(card.node)
            findings = () if reading is None else reading.findings
            wrong = [
                finding.model_dump(mode="json", exclude={"node"})
                for finding in findings
                if finding.node == card.node and finding.code in OF_STORES
            ]
            stored = told.get(card.node)
            if stored is None:
                wrong.append(NOT_TOLD)
            free_bytes = 0 if stored is None else stored.disk_free_bytes
            found.append(
                {
                    "node": card.node,
                    "name": card.name,
                    "status": _worst(one["level"] for one in wrong),
                    "disk_free_bytes": free_bytes,
                    "findings": wrong,
                }
            )
        answer: StoreHealthAnswer = {
            "status": _worst(one["status"] for one in found),
            "nodes": found,
        }
        answer_json(resp, answer)


class StoreRegistry(Resource):
    """`GET /store/registry`: each model on any node's disk."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the models, by name, and where each lies."""
        await self.service.catalog.wait_known()
        cards = self.service.catalog.cards()
        lying = [_registered(self.service, cards[name]) for name in sorted(cards)]
        answer: RegistryAnswer = {"models": lying}
        answer_json(resp, answer)


class ModelInStore(ModelEverywhere):
    """`/store/models/{name}`: what is known of a model on the disks of all nodes; has one get it,
    deletes it there."""

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        """Answer with where it lies, and with the files of this node's copy. 404 for none."""
        service = self.service
        await service.catalog.wait_known()
        model = service.catalog.named(name)
        card = service.catalog.cards().get(model)
        if card is None:
            raise HttpFaultRaised(unknown_model(name, sorted(service.catalog.names())))
        here = service.catalog.card_here(model)
        files = [] if here is None else await asyncio.to_thread(files_on_disk, Path(here.path))
        held = service.removals.held(model)
        told: ModelInStoreAnswer = {
            **_registered(service, card),
            "held": held.words if held else "",
            "files_here": cast(list[FileOnDisk], files),
        }
        answer_json(resp, told)

    async def on_post(self, req: Request, resp: Response, name: str) -> None:
        """Have a node get it, as `POST /models/pull` does. Raises HttpFaultRaised, BadRequest."""
        asked = await self.read(req, DownloadBody)
        if name.count("/") > 1:
            name = name.removesuffix(DOWNLOAD)
        pull = PullBody(
            model=name[:NAME_CHARACTERS], revision=asked.revision, to=asked.to, stream=asked.stream
        )
        await answer_pull(self.service, req, resp, pull)


class PurgeStaging(Resource):
    """`POST /store/purge-staging`: let go now what may go."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Have it done, and answer with what went, what stays, and why."""
        asked = await self.read(req, PurgeBody)
        service = self.service
        await service.catalog.wait_known()
        told = self._nodes(asked.node)
        found: list[PurgedNode] = []
        for reading in told:
            if asked.dry_run:
                going, stays = _fetched(reading)
                state = PurgeState(phase="done", stays=tuple(stays))
            else:
                going, state = [], await self._purged(reading.node)
            found.append(_outcome(service, reading.node, state, going))
        answer: PurgeAnswer = {"dry_run": asked.dry_run, "nodes": found}
        answer_json(resp, answer)

    def _nodes(self, word: str | None) -> Sequence[StorageReading]:
        """Return what the nodes that are meant told last. Raises HttpFaultRaised (404, 503)."""
        service, told = self.service, _readings(self.service)
        if word == ALL:
            return told
        own = service.bus.speaker.node
        node = own if word is None else node_named(service, word, "node")
        mine = [one for one in told if one.node == node]
        if not mine:
            text = "the node has not reported its disk yet; check that its worker is running"
            raise HttpFaultRaised(HttpFault(503, "unavailable", text, retry_after_s=2.0))
        return mine

    async def _purged(self, node: NodeId) -> PurgeState:
        """Return the end of a node's purge. Raises HttpFaultRaised (504)."""
        service, state = self.service, PurgeState(phase="waiting")
        try:
            async for told in Workers(service.bus, service.readings).purge(node):
                state = told
        except OwnerSilent as silent:
            raise HttpFaultRaised(owner_silent(silent.owner, silent.waited_s)) from None
        return state


def _worst(levels: Iterable[str]) -> Literal["ok", "warn", "error"]:
    found = set(levels)
    return "error" if "error" in found else "warn" if "warn" in found else "ok"


def _registered(service: HttpService, card: ModelCard) -> RegisteredModel:
    """Return a model, and what each node that has it, whole or in part, says of its copy."""
    stored = {
        (reading.node, model.model): model
        for reading in _readings(service)
        for model in reading.models
    }
    nodes: list[CopyOnNode] = []
    for node in service.removals.lies_at(card.model):
        copy = next((model for model in node.models if model.model == card.model), None)
        said = stored.get((node.node, card.model))
        nodes.append(
            {
                "node": node.node,
                "name": node.name,
                "whole": copy is not None,
                "origin": "" if copy is None else copy.origin,
                "sources": [] if copy is None else list(copy.sources),
                "stored": None if said is None else said.model_dump(mode="json"),
            }
        )
    return {
        "model": card.model,
        "digest": card.digest,
        "size_bytes": card.size_bytes,
        "quantization": card.quantization,
        "made_from": card.made_from,
        "nodes": nodes,
    }


def _readings(service: HttpService) -> list[StorageReading]:
    return sorted(storage_of(service.readings, service.reactor.now()), key=lambda one: one.node)


def _named(service: HttpService, node: NodeId) -> NodeNamed:
    cards = service.readings.cards(service.reactor.now())
    name = next((card.name for card in cards if card.node == node), node)
    return {"node": node, "name": name}


def _fetched(reading: StorageReading) -> tuple[list[StoredModel], list[StoredModel]]:
    """Return what was fetched and may go, in order, and what of it stays."""
    fetched = [model for model in reading.models if model.what == "fetched"]
    return [one for one in fetched if not one.why], [one for one in fetched if one.why]


def _storage(service: HttpService, reading: StorageReading) -> NodeStorage:
    going, _ = _fetched(reading)
    over_bytes = max(0, reading.fetched_bytes - reading.limit_bytes)
    return {
        **_named(service, reading.node),
        "store_bytes": reading.limit_bytes,
        "store": reading.keeps_all,
        "over_bytes": 0 if reading.limit_bytes < 0 or reading.keeps_all else over_bytes,
        "disk_free_bytes": reading.disk_free_bytes,
        "bytes": {
            "fetched": reading.fetched_bytes,
            "put": reading.put_bytes,
            "made": reading.made_bytes,
            "bundled": reading.bundled_bytes,
        },
        "next": going[0].model if going else None,
        "models": [model.model_dump(mode="json") for model in reading.models],
        "more": reading.more,
        "let_go": [one.model_dump(mode="json") for one in reading.let_go],
    }


def _outcome(
    service: HttpService, node: NodeId, state: PurgeState, going: Sequence[StoredModel]
) -> PurgedNode:
    return {
        **_named(service, node),
        "let_go": [one.model_dump(mode="json") for one in state.let_go],
        "would_go": [one.model_dump(mode="json") for one in going],
        "stays": [stay.model_dump(mode="json") for stay in state.stays],
        "bytes": sum(one.size_bytes for one in (*state.let_go, *going)),
    }
