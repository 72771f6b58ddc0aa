"""Talks to clients about tasks: lists tasks and providers, and shows and changes the setting that
allows fallback to providers."""

from __future__ import annotations

import os

from falcon.asgi import Request, Response
from pydantic import Field
from typing_extensions import TypedDict

from bus.wire.messages.commands import AllowCloudFallback
from gateway.cluster import Cluster
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFaultRaised
from gateway.exchange import Parts
from gateway.http.middleware import Resource, answer_json


class ConfigBody(Closed):
    """`PUT /api/v1/config`."""

    allowCloudFallback: bool = Field(
        description="whether providers may answer for a task when the candidates before them fail",
    )


class ConfigAnswer(TypedDict):
    """The setting that clients can change while the cluster runs: whether tasks may fall back to
    providers."""

    allowCloudFallback: bool


class CandidateTold(TypedDict):
    """A candidate of a task. `provider` is null for a model of the cluster. `known`: the model is
    on a disk or in memory. `loaded`: the model can answer now."""

    name: str
    provider: str | None
    known: bool
    loaded: bool


class TaskTold(TypedDict):
    """A task of `tasks.toml`, with its candidates in order."""

    name: str
    candidates: list[CandidateTold]
    budget_s: float | None
    keep_alive_s: float | None
    pin_primary: bool
    spill_to: str | None
    spill_after_s: float | None


class SpillingModelTold(TypedDict):
    """A model of the cluster whose waiting requests spill over to a provider's model."""

    name: str
    spill_to: str
    spill_after_s: float


class ProviderTold(TypedDict):
    """A provider; `has_key` is true if its API key is set or none is needed."""

    name: str
    kind: str
    base_url: str
    key_env: str
    has_key: bool
    models: list[str]


class TasksAnswer(ConfigAnswer):
    """The tasks and providers of a node's `tasks.toml`, and its models that spill over. `trouble`
    is an error in the file."""

    node: str
    file: str
    trouble: str
    tasks: list[TaskTold]
    models: list[SpillingModelTold]
    providers: list[ProviderTold]


class ConfigResource(Resource):
    """`GET /api/v1/config` and `PUT /api/v1/config`: a setting of the whole cluster."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the current value of the setting."""
        await self.cluster.catalog.wait_known()
        answer_json(resp, _config(self.cluster))

    async def on_put(self, req: Request, resp: Response) -> None:
        """Allow or forbid fallback to providers in the whole cluster. Answer when the state of
        this process has the change, or after `gateway.cluster.NOTICED_S`."""
        cluster = self.cluster
        body = await self.read(req, ConfigBody)
        command = AllowCloudFallback(
            command_id=cluster.command_id(), allowed=body.allowCloudFallback
        )
        await cluster.noticed(await cluster.command(command))
        answer_json(resp, _config(cluster))


class TaskList(Resource):
    """`GET /tasks`: the tasks and providers of this node's `tasks.toml`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with tasks, providers and the current error in the file."""
        cluster, parts = self.cluster, self.parts
        await cluster.catalog.wait_known()
        book = parts.tasks
        answer: TasksAnswer = {
            "node": cluster.options.node,
            "file": "" if book.file is None else str(book.file),
            "trouble": book.trouble,
            **_config(cluster),
            "tasks": [_task(cluster, parts, name) for name in sorted(book.table.tasks)],
            "models": [
                {"name": name, "spill_to": own.spill_to, "spill_after_s": own.spill_after_s}
                for name, own in sorted(book.table.models.items())
            ],
            "providers": [
                {
                    "name": name,
                    "kind": provider.kind,
                    "base_url": provider.base_url,
                    "key_env": provider.key_env,
                    "has_key": not provider.key_env or bool(os.environ.get(provider.key_env)),
                    "models": [
                        model.name
                        for model in book.table.provided_models()
                        if model.provider == name
                    ],
                }
                for name, provider in sorted(book.table.providers.items())
            ],
        }
        answer_json(resp, answer)


def _config(cluster: Cluster) -> ConfigAnswer:
    return {"allowCloudFallback": cluster.bus.state.cloud_fallback}


def _task(cluster: Cluster, parts: Parts, name: str) -> TaskTold:
    task = parts.tasks.table.tasks[name]
    return {
        "name": name,
        "candidates": [_candidate(cluster, parts, candidate) for candidate in task.candidates],
        "budget_s": task.budget_s,
        "keep_alive_s": task.keep_alive_s,
        "pin_primary": task.pin_primary,
        "spill_to": task.spill_to,
        "spill_after_s": task.spill_after_s,
    }


def _candidate(cluster: Cluster, parts: Parts, name: str) -> CandidateTold:
    provided = parts.tasks.table.provided(name)
    if provided is not None:
        return {"name": name, "provider": provided.provider, "known": True, "loaded": False}
    try:
        model = cluster.catalog.named(name)
    except HttpFaultRaised:
        return {"name": name, "provider": None, "known": False, "loaded": False}
    loaded = bool(cluster.catalog.ready(model))
    return {"name": name, "provider": None, "known": True, "loaded": loaded}
