"""Talks to the gateways of all nodes: reads and changes the settings of each node.

Each node changes its own `shoal.toml` by the rules of `PUT /settings`, and reports the result.
Secret values never leave a node. If a node cannot be reached, its settings are not changed, and the
answer names this node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from typing_extensions import TypedDict

from bus.wire.errors import ConfigError, SettingsUnwritable
from bus.wire.ids import NodeId
from gateway.cluster.record_questions import RecordsElsewhere
from gateway.service import HttpService
from gateway.view.options import SettingsDesk, SettingValue

READ, CHANGE = "settings.read", "settings.change"
OWN = frozenset({"node_name"})
"""Settings whose values differ on every node by design, such as the node's name."""
UNKNOWN = "this gateway was started without the settings of its node"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings of another node. `values` has the values in force by key, with secrets masked.
    `why` is the reason why the node did not answer or did not change its settings, else ""."""

    node: NodeId
    name: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    why: str = ""


class SettingElsewhere(TypedDict):
    """A node on which a setting has a different value."""

    node: str
    name: str
    value: SettingValue


def answer_settings(service: HttpService) -> None:
    """Let other nodes' gateways read and change this node's settings."""
    desk = service.options.settings

    async def read(_arguments: Any) -> list[Any]:
        """Return the values in force and "". If they cannot be read, return the reason instead of
        ""."""
        if desk is None:
            return [{}, UNKNOWN]
        return [await asyncio.to_thread(_values, desk), ""]

    async def change(arguments: Any) -> list[Any]:
        """Change settings. Return the values in force and "", or the reason if nothing was
        changed."""
        put, drop = cast(tuple[dict[str, Any], list[str]], arguments)
        try:
            why = UNKNOWN if desk is None else await changed(service, desk, put, drop)
        except SettingsUnwritable as error:
            why = str(error)
        values, read_failure = await read(())
        return [values, why or read_failure]

    service.record_lists.questions.answer(READ, read)
    service.record_lists.questions.answer(CHANGE, change)


async def changed(
    service: HttpService, desk: SettingsDesk, put: Mapping[str, Any], drop: Sequence[str]
) -> str:
    """Change this node's settings. Return the reason if the change was refused, else "". Raises
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
    """Return the reason why a setting can only be changed on the machine itself; "" if it can be
    changed over HTTP."""
    why = desk.why_not_over_http(key)
    return why and f"{key} can only be changed on the machine, because {why}; use `shoal config`"


async def of_others(service: HttpService) -> list[NodeSettings]:
    """Return the settings of all other nodes, by name."""
    return await _each(service, READ, [])


async def change_others(
    service: HttpService, put: Mapping[str, Any], drop: Sequence[str]
) -> list[NodeSettings]:
    """Change settings of all other nodes. Return the settings of each node, or the reason why the
    node did not change them."""
    return await _each(service, CHANGE, [dict(put), list(drop)])


def elsewhere(row: Mapping[str, Any], others: Sequence[NodeSettings]) -> list[SettingElsewhere]:
    """Return the nodes where a setting differs from `row`, with their values."""
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
    answers = await asyncio.gather(*(_ask_node(service, node, verb, arguments) for node in nodes))
    return sorted(answers, key=lambda answer: (answer.name, answer.node))


async def _ask_node(
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
