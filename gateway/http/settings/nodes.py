"""Talks to the gateways of all nodes: the settings of each, told and changed as one's own are.

Each node changes its own `shoal.toml`, by the rules that hold where it is asked over HTTP, and says
what came of it; what may not be shown is left out before it leaves a node. A node that is not there
keeps what it has, and is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from typing_extensions import TypedDict

from bus.wire.errors import ConfigError, SettingsUnwritable
from bus.wire.ids import NodeId
from gateway.cluster.options import SettingsDesk, SettingValue
from gateway.cluster.record_questions import RecordsElsewhere
from gateway.service import HttpService

READ, CHANGE = "settings.read", "settings.change"
OWN = frozenset({"node_name"})
"""Settings that every node has for itself."""
UNKNOWN = "this gateway was started without the settings of its node"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What another node has: `values` in force by key, as they may be shown; `why` it did not tell
    them, or was not changed (empty: it was)."""

    node: NodeId
    name: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    why: str = ""


class SettingElsewhere(TypedDict):
    """A node that has another value."""

    node: str
    name: str
    value: SettingValue


def answer_settings(service: HttpService) -> None:
    """Have this node's settings told to the gateways of others, and changed by them."""
    desk = service.options.settings

    async def read(_arguments: Any) -> list[Any]:
        """Return what is in force, and why that is not known."""
        if desk is None:
            return [{}, UNKNOWN]
        return [await asyncio.to_thread(_values, desk), ""]

    async def change(arguments: Any) -> list[Any]:
        """Change settings; return what is in force then, and why they were not changed."""
        put, drop = cast(tuple[dict[str, Any], list[str]], arguments)
        try:
            why = UNKNOWN if desk is None else await changed(service, desk, put, drop)
        except SettingsUnwritable as error:
            why = str(error)
        values, untold = await read(())
        return [values, why or untold]

    service.record_lists.questions.answer(READ, read)
    service.record_lists.questions.answer(CHANGE, change)


async def changed(
    service: HttpService, desk: SettingsDesk, put: Mapping[str, Any], drop: Sequence[str]
) -> str:
    """Change this node's settings; return why they were not ("": they were). Raises
    SettingsUnwritable."""
    keys = (*put, *drop)
    for key in keys:
        if why := alone(desk, key):
            return why
    try:
        await asyncio.to_thread(desk.change, put, drop)
    except SettingsUnwritable:
        raise
    except ConfigError as error:
        return str(error)
    service.log.info("settings were changed over HTTP", settings=", ".join(keys))
    return ""


def alone(desk: SettingsDesk, key: str) -> str:
    """Return why a setting is changed on the machine alone, and with what; "" where it is not."""
    why = desk.why_not_over_http(key)
    return why and f"{key} can only be changed on the machine, because {why}; use `shoal config`"


async def of_others(service: HttpService) -> list[NodeSettings]:
    """Return the settings of each other node of the cluster."""
    return await _each(service, READ, [])


async def change_others(
    service: HttpService, put: Mapping[str, Any], drop: Sequence[str]
) -> list[NodeSettings]:
    """Change settings of each other node, and return what came of it."""
    return await _each(service, CHANGE, [dict(put), list(drop)])


def elsewhere(row: Mapping[str, Any], others: Sequence[NodeSettings]) -> list[SettingElsewhere]:
    """Return the nodes where a setting has another value than in `row`, with that."""
    key, value = row["key"], _plain(row["value"])
    if key in OWN:
        return []
    return [
        {"node": other.node, "name": other.name, "value": other.values[key]}
        for other in others
        if key in other.values and other.values[key] != value
    ]


async def _each(service: HttpService, verb: str, arguments: list[Any]) -> list[NodeSettings]:
    own = service.options.node
    nodes = [node for node in service.record_lists.nodes() if node != own]
    found = await asyncio.gather(*(_asked(service, node, verb, arguments) for node in nodes))
    return sorted(found, key=lambda one: (one.name, one.node))


async def _asked(
    service: HttpService, node: NodeId, verb: str, arguments: list[Any]
) -> NodeSettings:
    record = service.bus.state.nodes.get(node)
    name = (record.name if record is not None else "") or node
    try:
        values, why = await service.record_lists.questions.ask(node, verb, arguments)
    except RecordsElsewhere as error:
        return NodeSettings(node, name, why=str(error))
    return NodeSettings(node, name, values, why)


def _values(desk: SettingsDesk) -> dict[str, Any]:
    return {row["key"]: _plain(row["value"]) for row in desk.rows()["settings"]}


def _plain(value: Any) -> Any:
    return list(cast(tuple[Any, ...], value)) if isinstance(value, tuple) else value
