"""Talks to clients about tasks: which there are, and whether providers may be fallen back to."""

from __future__ import annotations

import os
from typing import Any

from falcon.asgi import Request, Response
from pydantic import Field

from bus.wire.messages.commands import AllowCloudFallback
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFaultRaised
from gateway.http.middleware import Resource, answer_json
from gateway.service import HttpService


class ConfigBody(Closed):
    """`PUT /api/v1/config`."""

    allowCloudFallback: bool = Field(
        description="whether providers' models answer for a task where those before them fail",
    )


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
        answer_json(
            resp,
            {
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
                            known.name
                            for known in book.table.provided_models()
                            if known.provider == name
                        ],
                    }
                    for name, one in sorted(book.table.providers.items())
                ],
            },
        )


def _config(service: HttpService) -> dict[str, Any]:
    return {"allowCloudFallback": service.bus.state.cloud_fallback}


def _task(service: HttpService, name: str) -> dict[str, Any]:
    task = service.tasks.table.tasks[name]
    return {
        "name": name,
        "candidates": [_candidate(service, one) for one in task.candidates],
        "budget_s": task.budget_s,
        "keep_alive_s": task.keep_alive_s,
        "pin_primary": task.pin_primary,
    }


def _candidate(service: HttpService, name: str) -> dict[str, Any]:
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
