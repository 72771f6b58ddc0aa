"""Talks to the gateways of all nodes: reads and changes the settings of each node.

Each node changes its own `shoal.toml` by the rules of `PUT /settings`, and reports the result.
Secret values never leave a node. If a node cannot be reached, its settings are not changed, and the
answer names this node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from typing_extensions import TypedDict

from bus.calls import TypedCall, table
from bus.wire.calls.nodes import ChangeSettings, ReadSettings, SettingsRead
from bus.wire.errors import ConfigError, SettingsUnwritable
from bus.wire.ids import NodeId
from bus.wire.messages.wire import Message
from gateway.cluster import Cluster
from gateway.view.options import SettingsDesk, SettingValue

Q = TypeVar("Q", bound=Message)
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


def answer_settings(cluster: Cluster) -> None:
    """Let other nodes' gateways read and change this node's settings."""
    desk = cluster.options.settings

    async def read(_call: ReadSettings) -> SettingsRead:
        if desk is None:
            return SettingsRead(values={}, why=UNKNOWN)
        return SettingsRead(values=await asyncio.to_thread(_values, desk))

    async def change(call: ChangeSettings) -> SettingsRead:
        try:
            why = UNKNOWN if desk is None else await changed(cluster, desk, call.put, call.drop)
        except SettingsUnwritable as error:
            why = str(error)
        now = await read(ReadSettings())
        return SettingsRead(values=now.values, why=why or now.why)

    cluster.calls.answer(table.READ_SETTINGS, read)
    cluster.calls.answer(table.CHANGE_SETTINGS, change)


async def changed(
    cluster: Cluster, desk: SettingsDesk, put: Mapping[str, Any], drop: Sequence[str]
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
    cluster.log.info("settings were changed over HTTP", settings=", ".join(keys))
    return ""


def alone(desk: SettingsDesk, key: str) -> str:
    """Return the reason why a setting can only be changed on the machine itself; "" if it can be
    changed over HTTP."""
    why = desk.why_not_over_http(key)
    return why and f"{key} can only be changed on the machine, because {why}; use `shoal config`"


async def of_others(cluster: Cluster, key: str) -> list[NodeSettings]:
    """Return the settings of all other nodes, by name. `key` is the API key of the client
    (`NodeCalls.ask`)."""
    return await _of_each(cluster, key, table.READ_SETTINGS, ReadSettings())


async def change_others(
    cluster: Cluster, key: str, put: Mapping[str, Any], drop: Sequence[str]
) -> list[NodeSettings]:
    """Change settings of all other nodes. Return the settings of each node, or the reason why the
    node did not change them."""
    change = ChangeSettings(put=dict(put), drop=tuple(drop))
    return await _of_each(cluster, key, table.CHANGE_SETTINGS, change)


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


async def _of_each(
    cluster: Cluster, key: str, call: TypedCall[Q, SettingsRead], request: Q
) -> list[NodeSettings]:
    nodes = [node for node in cluster.calls.nodes() if node != cluster.options.node]
    gathered = await cluster.calls.ask_each(call, request, nodes=nodes, key=key)
    records = cluster.bus.state.nodes
    names = {node: (records[node].name if node in records else "") or node for node in nodes}
    answers = [
        *(
            NodeSettings(node, names[node], why=str(error))
            for node, error in gathered.failures.items()
        ),
        *(
            NodeSettings(node, names[node], reply.values, reply.why)
            for node, reply in gathered.replies.items()
        ),
    ]
    return sorted(answers, key=lambda answer: (answer.name, answer.node))


def _values(desk: SettingsDesk) -> dict[str, Any]:
    return {row["key"]: _plain(row["value"]) for row in desk.rows()["settings"]}


def _plain(value: Any) -> Any:
    return list(cast(tuple[Any, ...], value)) if isinstance(value, tuple) else value
