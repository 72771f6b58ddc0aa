"""Talks to clients, and in threads to the file of settings: `/settings`."""

from __future__ import annotations

import asyncio
from typing import Any

from falcon.asgi import Request, Response
from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from bus.wire.errors import BadRequest, ConfigError
from gateway.cluster.options import SettingsDesk
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.middleware import Resource, answer_json
from gateway.service import HttpService

MOST = 100
Value = StrictBool | StrictInt | StrictFloat | StrictStr | list[StrictStr]


class SettingsBody(Closed):
    """`PUT /settings`: values by dotted key, and keys that are to have their defaults again."""

    set: dict[str, Value] = Field(
        default={}, max_length=MOST, description="settings by name, as in `shoal.toml`, with values"
    )
    unset: list[StrictStr] = Field(
        default=[], max_length=MOST, description="settings that `shoal.toml` is to say nothing of"
    )


class SettingsResource(Resource):
    """`GET /settings` and `PUT /settings`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with every setting of this node, as it may be shown."""
        await _answer(resp, self.service, _desk(self.service))

    async def on_put(self, req: Request, resp: Response) -> None:
        """Change `shoal.toml`, and answer as GET does. 403 for what is changed on the machine
        alone; nothing is written where one of the changes is refused."""
        desk = _desk(self.service)
        asked = await self.read(req, SettingsBody)
        keys = (*asked.set, *asked.unset)
        if not keys or len(set(keys)) < len(keys):
            text = 'name settings, each once: {"set": {"keep_alive_s": 60}, "unset": ["slots"]}'
            raise BadRequest(text, field="set")
        for key in keys:
            if why := desk.why_not_over_http(key):
                text = f"{key} is changed on the machine alone, for {why}: `shoal config` does it"
                raise HttpFaultRaised(HttpFault(403, "setting_not_over_http", text))
        try:
            await asyncio.to_thread(desk.change, asked.set, asked.unset)
        except ConfigError as error:
            field = "set" if asked.set else "unset"
            raise BadRequest(str(error), field=field) from error
        self.service.log.info("settings were changed over HTTP", settings=", ".join(keys))
        await _answer(resp, self.service, desk)


async def _answer(resp: Response, service: HttpService, desk: SettingsDesk) -> None:
    try:
        found: dict[str, Any] = await asyncio.to_thread(desk.rows)
    except ConfigError as error:
        raise HttpFaultRaised(HttpFault(503, "settings_unreadable", str(error))) from error
    options = service.options
    answer_json(resp, {"node": options.node, "name": options.node_name, **found})
    resp.set_header("cache-control", "no-store")


def _desk(service: HttpService) -> SettingsDesk:
    desk = service.options.settings
    if desk is None:
        text = "this gateway was started without the settings of its node"
        raise HttpFaultRaised(HttpFault(503, "settings_unknown", text))
    return desk
