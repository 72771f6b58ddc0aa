"""Talks to clients, to the settings file (in threads), and to other gateways: `/settings`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NotRequired, cast

from falcon.asgi import Request, Response
from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr
from typing_extensions import TypedDict

from bus.wire.errors import BadRequest, ConfigError, SettingsUnwritable
from gateway.cluster import Cluster
from gateway.dialects.body import Closed, bad_field
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.callers import key_behind
from gateway.http.middleware import Resource, answer_json
from gateway.http.settings.nodes import (
    OWN,
    UNKNOWN,
    NodeSettings,
    SettingElsewhere,
    alone,
    change_others,
    changed,
    elsewhere,
    of_others,
)
from gateway.view.options import SettingRow, SettingsDesk, SettingsFound

MOST = 100
Value = StrictBool | StrictInt | StrictFloat | StrictStr | list[StrictStr]

UNWRITABLE = "settings_unwritable"


class SettingsBody(Closed):
    """`PUT /settings`: values by dotted key, and keys to reset to their defaults."""

    set: dict[str, Value] = Field(
        default={}, max_length=MOST, description="values of settings by name, as in `shoal.toml`"
    )
    unset: list[StrictStr] = Field(
        default=[], max_length=MOST, description="settings to remove from `shoal.toml`"
    )


class SettingOfAll(SettingRow):
    """A setting. If all nodes were asked, `elsewhere` has the nodes on which its value differs."""

    elsewhere: NotRequired[list[SettingElsewhere]]


class AskedNode(TypedDict):
    """Another node that was asked. `why` is the reason if it did not answer, else empty."""

    node: str
    name: str
    why: str


class SettingsAnswer(TypedDict):
    """The settings of a node, in the order of `defaults.toml`; `nodes` are the other nodes that
    were asked."""

    node: str
    name: str
    file: str
    trouble: str
    settings: list[SettingOfAll]
    nodes: NotRequired[list[AskedNode]]


class SettingsResource(Resource):
    """`GET /settings` and `PUT /settings`: of this node, or with `?nodes=all` of all nodes."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with every setting of this node, secrets masked; with `?nodes=all` also with the
        nodes that have different values."""
        cluster, desk = self.cluster, _desk(self.cluster)
        others = await of_others(cluster, key_behind(req)) if self.is_of_all(req) else None
        await _answer(resp, cluster, desk, others)

    async def on_put(self, req: Request, resp: Response) -> None:
        """Change `shoal.toml`, and answer as GET does. 403 for settings that only the machine may
        change. If one change is refused, nothing is written, and other nodes are not asked."""
        cluster, desk = self.cluster, _desk(self.cluster)
        body, is_of_all = await self.read(req, SettingsBody), self.is_of_all(req)
        keys = (*body.set, *body.unset)
        if not keys or len(set(keys)) < len(keys):
            text = 'name settings, each once: {"set": {"keep_alive_s": 60}, "unset": ["slots"]}'
            raise BadRequest(text, field="set")
        for key in keys:
            if why := alone(desk, key):
                raise HttpFaultRaised(HttpFault(403, "setting_not_over_http", why))
            if is_of_all and key in OWN:
                raise BadRequest(
                    f"{key}: every node has its own value; change it on one node", field="nodes"
                )
        try:
            why = await changed(cluster, desk, body.set, body.unset)
        except SettingsUnwritable as error:
            status, code = (507, "insufficient_storage") if error.is_full else (503, UNWRITABLE)
            raise HttpFaultRaised(HttpFault(status, code, str(error))) from error
        if why:
            raise BadRequest(why, field="set" if body.set else "unset")
        others = None
        if is_of_all:
            others = await change_others(cluster, key_behind(req), body.set, body.unset)
        await _answer(resp, cluster, desk, others)

    def is_of_all(self, req: Request) -> bool:
        """Return whether the query has `nodes=all`. Raises BadRequest for any other value."""
        nodes = req.get_param("nodes")
        if nodes not in (None, "all"):
            raise bad_field("nodes", "must be 'all'; omit it for this node only")
        return nodes is not None


class SettingsOfAll(SettingsResource):
    """`GET /config` and `PUT /config`: the settings of all nodes, always."""

    def is_of_all(self, req: Request) -> bool:
        """Return True: these paths are always for all nodes."""
        return True


async def _answer(
    resp: Response,
    cluster: Cluster,
    desk: SettingsDesk,
    others: Sequence[NodeSettings] | None,
) -> None:
    """Answer with the settings, and with the differences on `others` if other nodes were asked."""
    try:
        own = cast(SettingsFound, await asyncio.to_thread(desk.rows))
    except ConfigError as error:
        raise HttpFaultRaised(HttpFault(503, "settings_unreadable", str(error))) from error
    options = cluster.options
    document: SettingsAnswer = {
        "node": options.node,
        "name": options.node_name,
        "file": own["file"],
        "trouble": own["trouble"],
        "settings": [SettingOfAll(**row) for row in own["settings"]],
    }
    if others is not None:
        document["nodes"] = [
            {"node": other.node, "name": other.name, "why": other.why} for other in others
        ]
        document["settings"] = [
            SettingOfAll(**row, elsewhere=elsewhere(row, others)) for row in own["settings"]
        ]
    answer_json(resp, document)
    resp.set_header("cache-control", "no-store")


def _desk(cluster: Cluster) -> SettingsDesk:
    desk = cluster.options.settings
    if desk is None:
        raise HttpFaultRaised(HttpFault(503, "settings_unknown", UNKNOWN))
    return desk
