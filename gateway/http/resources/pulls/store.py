"""Talks to clients about the models on nodes' disks: their sizes and nodes, how much shoal fetched,
and which model would be deleted next. Also deletes all models that may be deleted.

Deleting needs the same permission as any deletion of models. Each node applies its own rules. A dry
run uses the latest report of its worker.
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
from gateway.cluster import Cluster
from gateway.control.model_files import files_on_disk
from gateway.control.pulling import Workers
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFault, HttpFaultRaised, unknown_model
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
from gateway.view.readings import storage_of

ALL = "all"
DOWNLOAD = "/download"
"""Suffix that some clients append to the path of the model."""
OF_STORES = ("disk_full", "disk_low", "download_failed")
"""Codes of the health findings about a node's store."""
NOT_REPORTED = {
    "level": "warn",
    "code": "store_untold",
    "message": "the node's worker has not reported the node's disk",
    "remediation": "see `shoal status` on that node (worker)",
}


class PurgeBody(Closed):
    """`POST /store/purge-staging`: `node` is a node, by id or name, or `all` for all nodes in turn;
    by default this node. `dry_run`: nothing is deleted."""

    node: str | None = None
    dry_run: bool = False


class DownloadBody(Closed):
    """`POST /store/models/{name}`: the node `to`, by id or name, pulls the model; by default this
    node. A missing body equals an empty one."""

    to: str | None = None
    revision: str = Field(default="", max_length=200)
    stream: bool = True


class StorageResource(Resource):
    """`GET /store/storage`: the models on the disks of all nodes."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with each node's bytes by origin, its limit, and its models."""
        readings = _readings(self.cluster)
        nodes = [_storage(self.cluster, reading) for reading in readings]
        answer: StorageAnswer = {"nodes": nodes}
        answer_json(resp, answer)


class StoreHealth(Resource):
    """`GET /store/health`: whether each node has disk space for models."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the problems of each node's store, and with the worst level of all nodes."""
        cluster = self.cluster
        readings, now = cluster.readings, cluster.reactor.now()
        storage_of_nodes = {storage.node: storage for storage in _readings(cluster)}
        measured = {reading.node: reading for reading, _ in readings.nodes(now)}
        nodes: list[NodeStoreHealth] = []
        for card in readings.cards(now):
            reading = measured.get(card.node)
            findings = () if reading is None else reading.findings
            wrong = [
                finding.model_dump(mode="json", exclude={"node"})
                for finding in findings
                if finding.node == card.node and finding.code in OF_STORES
            ]
            stored = storage_of_nodes.get(card.node)
            if stored is None:
                wrong.append(NOT_REPORTED)
            free_bytes = 0 if stored is None else stored.disk_free_bytes
            nodes.append(
                {
                    "node": card.node,
                    "name": card.name,
                    "status": _worst(finding["level"] for finding in wrong),
                    "disk_free_bytes": free_bytes,
                    "findings": wrong,
                }
            )
        answer: StoreHealthAnswer = {
            "status": _worst(node["status"] for node in nodes),
            "nodes": nodes,
        }
        answer_json(resp, answer)


class StoreRegistry(Resource):
    """`GET /store/registry`: each model on any node's disk."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the models, ordered by name, and the nodes that have each."""
        await self.cluster.catalog.wait_known()
        cards = self.cluster.catalog.cards()
        models = [_registered(self.cluster, cards[name]) for name in sorted(cards)]
        answer: RegistryAnswer = {"models": models}
        answer_json(resp, answer)


class ModelInStore(ModelEverywhere):
    """`/store/models/{name}`: shows a model on the disks of all nodes, has a node pull it, deletes
    it from all nodes."""

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        """Answer with the nodes that have the model, and the files of this node's copy. 404 for an
        unknown model."""
        cluster = self.cluster
        await cluster.catalog.wait_known()
        model = cluster.catalog.named(name)
        card = cluster.catalog.cards().get(model)
        if card is None:
            raise HttpFaultRaised(unknown_model(name, sorted(cluster.catalog.names())))
        here = cluster.catalog.card_here(model)
        files = [] if here is None else await asyncio.to_thread(files_on_disk, Path(here.path))
        hold = cluster.removals.why_not_deleted(model)
        answer: ModelInStoreAnswer = {
            **_registered(cluster, card),
            "held": hold.words if hold else "",
            "files_here": cast(list[FileOnDisk], files),
        }
        answer_json(resp, answer)

    async def on_post(self, req: Request, resp: Response, name: str) -> None:
        """Have a node pull the model, as `POST /models/pull` does. Raises HttpFaultRaised,
        BadRequest."""
        body = await self.read(req, DownloadBody)
        if name.count("/") > 1:
            name = name.removesuffix(DOWNLOAD)
        pull = PullBody(
            model=name[:NAME_CHARACTERS], revision=body.revision, to=body.to, stream=body.stream
        )
        await answer_pull(self.cluster, req, resp, pull)


class PurgeStaging(Resource):
    """`POST /store/purge-staging`: delete all fetched models that may be deleted."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Delete the models. Answer with the deleted ones and the remaining ones, with the
        reasons."""
        body = await self.read(req, PurgeBody)
        cluster = self.cluster
        await cluster.catalog.wait_known()
        readings = self._nodes(body.node)
        results: list[PurgedNode] = []
        for reading in readings:
            if body.dry_run:
                going, stays = _fetched(reading)
                state = PurgeState(phase="done", stays=tuple(stays))
            else:
                going, state = [], await self._purged(reading.node)
            results.append(_outcome(cluster, reading.node, state, going))
        answer: PurgeAnswer = {"dry_run": body.dry_run, "nodes": results}
        answer_json(resp, answer)

    def _nodes(self, word: str | None) -> Sequence[StorageReading]:
        """Return the latest storage readings of the nodes that `word` names. Raises HttpFaultRaised
        (404, 503)."""
        cluster, readings = self.cluster, _readings(self.cluster)
        if word == ALL:
            return readings
        own = cluster.bus.speaker.node
        node = own if word is None else node_named(cluster, word, "node")
        mine = [reading for reading in readings if reading.node == node]
        if not mine:
            text = "the node has not reported its disk yet; check that its worker is running"
            raise HttpFaultRaised(HttpFault(503, "unavailable", text, retry_after_s=2.0))
        return mine

    async def _purged(self, node: NodeId) -> PurgeState:
        """Purge a node, and return its final state. Raises HttpFaultRaised (504)."""
        cluster, state = self.cluster, PurgeState(phase="waiting")
        async for latest in Workers(cluster.bus, cluster.readings).purge(node):
            state = latest
        return state


def _worst(levels: Iterable[str]) -> Literal["ok", "warn", "error"]:
    distinct = set(levels)
    return "error" if "error" in distinct else "warn" if "warn" in distinct else "ok"


def _registered(cluster: Cluster, card: ModelCard) -> RegisteredModel:
    """Return a model, and the copy of each node that has it, whole or in part."""
    stored = {
        (reading.node, model.model): model
        for reading in _readings(cluster)
        for model in reading.models
    }
    nodes: list[CopyOnNode] = []
    for node in cluster.removals.lies_at(card.model):
        copy = next((model for model in node.models if model.model == card.model), None)
        stored_copy = stored.get((node.node, card.model))
        nodes.append(
            {
                "node": node.node,
                "name": node.name,
                "whole": copy is not None,
                "origin": "" if copy is None else copy.origin,
                "sources": [] if copy is None else list(copy.sources),
                "stored": None if stored_copy is None else stored_copy.model_dump(mode="json"),
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


def _readings(cluster: Cluster) -> list[StorageReading]:
    latest = storage_of(cluster.readings, cluster.reactor.now())
    return sorted(latest, key=lambda reading: reading.node)


def _named(cluster: Cluster, node: NodeId) -> NodeNamed:
    cards = cluster.readings.cards(cluster.reactor.now())
    name = next((card.name for card in cards if card.node == node), node)
    return {"node": node, "name": name}


def _fetched(reading: StorageReading) -> tuple[list[StoredModel], list[StoredModel]]:
    """Return the fetched models that may be deleted, in deletion order, and the other ones."""
    fetched = [model for model in reading.models if model.what == "fetched"]
    return [model for model in fetched if not model.why], [model for model in fetched if model.why]


def _storage(cluster: Cluster, reading: StorageReading) -> NodeStorage:
    going, _ = _fetched(reading)
    over_bytes = max(0, reading.fetched_bytes - reading.limit_bytes)
    return {
        **_named(cluster, reading.node),
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
        "let_go": [model.model_dump(mode="json") for model in reading.let_go],
    }


def _outcome(
    cluster: Cluster, node: NodeId, state: PurgeState, going: Sequence[StoredModel]
) -> PurgedNode:
    return {
        **_named(cluster, node),
        "let_go": [model.model_dump(mode="json") for model in state.let_go],
        "would_go": [model.model_dump(mode="json") for model in going],
        "stays": [model.model_dump(mode="json") for model in state.stays],
        "bytes": sum(model.size_bytes for model in (*state.let_go, *going)),
    }
