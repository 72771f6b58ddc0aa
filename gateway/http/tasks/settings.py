"""Talks to clients about tasks: which there are, and whether providers may be fallen back to."""

from __future__ import annotations

import os

from falcon.asgi import Request, Response
from pydantic import Field
from typing_extensions import TypedDict

from bus.wire.messages.commands import AllowCloudFallback
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFaultRaised
from gateway.http.middleware import Resource, answer_json
from gateway.service import HttpService


class ConfigBody(Closed):
    """`PUT /api/v1/config`."""

    allowCloudFallback: bool = Field(
        description="whether providers may answer for a task when the candidates before them fail",
    )


class ConfigAnswer(TypedDict):
    """What is set while the cluster runs."""

    allowCloudFallback: bool


class CandidateTold(TypedDict):
    """A model that answers for a task: `provider` has it (null: the cluster); `known` where it is
    on a disk or in memory, `loaded` where it can answer now."""

    name: str
    provider: str | None
    known: bool
    loaded: bool


class TaskTold(TypedDict):
    """A task."""

    name: str
    candidates: list[CandidateTold]
    budget_s: float | None
    keep_alive_s: float | None
    pin_primary: bool


class ProviderTold(TypedDict):
    """A provider, and whether its key is there."""

    name: str
    kind: str
    base_url: str
    key_env: str
    has_key: bool
    models: list[str]


class TasksAnswer(ConfigAnswer):
    """What `tasks.toml` says on a node; `trouble` is what is wrong with it now."""

    node: str
    file: str
    trouble: str
    tasks: list[TaskTold]
    providers: list[ProviderTold]


class ConfigResource(Resource):
    """`GET /api/v1/config` and `PUT /api/v1/config`: what is set while the cluster runs, on all its
    nodes."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with what is set."""
        await self.service.catalog.wait_known()
        answer_json(resp, _config(self.service))

    async def on_put(self, req: Request, resp: Response) -> None:
        """Set it, and answer with what is set once this process knows it."""
        service = self.service
        asked = await self.read(req, ConfigBody)
        command = AllowCloudFallback(
            command_id=service.command_id(), allowed=asked.allowCloudFallback
        )
        await service.noticed(await service.command(command))
        answer_json(resp, _config(service))


class TaskList(Resource):
    """`GET /tasks`: what `tasks.toml` says on this node, and what of it is loaded."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with tasks and providers, and what is wrong with the file as it is now."""
        service = self.service
        await service.catalog.wait_known()
        book = service.tasks
        told: TasksAnswer = {
            "node": service.options.node,
            "file": "" if book.file is None else str(book.file),
            "trouble": book.trouble,
            **_config(service),
            "tasks": [_task(service, name) for name in sorted(book.table.tasks)],
            "providers": [
                {
                    "name": name,
                    "kind": one.kind,
                    "base_url": one.base_url,
                    "key_env": one.key_env,
                    "has_key": not one.key_env or bool(os.environ.get(one.key_env)),
                    "models": [
                        model.name
                        for model in book.table.provided_models()
                        if model.provider == name
                    ],
                }
                for name, one in sorted(book.table.providers.items())
            ],
        }
        answer_json(resp, told)


def _config(service: HttpService) -> ConfigAnswer:
    return {"allowCloudFallback": service.bus.state.cloud_fallback}


def _task(service: HttpService, name: str) -> TaskTold:
    task = service.tasks.table.tasks[name]
    return {
        "name": name,
        "candidates": [_candidate(service, candidate) for candidate in task.candidates],
        "budget_s": task.budget_s,
        "keep_alive_s": task.keep_alive_s,
        "pin_primary": task.pin_primary,
    }


def _candidate(service: HttpService, name: str) -> CandidateTold:
    """Return how a candidate stands: a model of the cluster is `known` where it is on a disk or in
    memory, and `loaded` where it can answer now."""
    provided = service.tasks.table.provided(name)
    if provided is not None:
        return {"name": name, "provider": provided.provider, "known": True, "loaded": False}
    try:
        model = service.catalog.named(name)
    except HttpFaultRaised:
        return {"name": name, "provider": None, "known": False, "loaded": False}
    loaded = bool(service.catalog.ready(model))
    return {"name": name, "provider": None, "known": True, "loaded": loaded}
