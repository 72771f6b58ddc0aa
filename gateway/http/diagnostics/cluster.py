"""Talks to the gateways of all nodes: what each node is doing, in one answer.

Every node is asked at once for what `GET /v1/diagnostics/node` tells there. One that is not there,
does not answer in time or refuses is named with the reason, in its place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from falcon.asgi import Request, Response

from bus.wire.ids import NodeId
from gateway.cluster.record_questions import RecordsElsewhere
from gateway.dialects.body import bad_field
from gateway.dialects.encode import json_bytes
from gateway.http.diagnostics.node import DiagnosticsTiming, node_document
from gateway.http.middleware import Resource, answer_json, tell_missing
from gateway.service import HttpService

VERB = "diagnostics.node"


class ClusterDiagnostics(Resource):
    """`GET /v1/diagnostics/cluster[?node=NODE]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with an entry for each node, in the order of their ids: what it told, or why it
        was not reached."""
        service = self.service
        wanted = req.get_param_as_list("node", default=[])
        nodes = chosen(names_of(service), [one for one in wanted if one], "node")
        found = await asyncio.gather(*(_asked(service, node) for node in nodes))
        tell_missing(resp, [f"{one['name']} ({one['why']})" for one in found if not one["reached"]])
        answer_json(resp, {"asked": service.options.node, "nodes": found})


def answer_node(service: HttpService) -> None:
    """Have this node's document told to the gateways of others."""

    async def told(_arguments: Any) -> bytes:
        """Return the document as JSON."""
        return json_bytes(await node_document(service, DiagnosticsTiming()))

    service.record_lists.questions.answer(VERB, told)


def names_of(service: HttpService) -> dict[NodeId, str]:
    """Return the nodes that the cluster has, by id, with their names (the id where none is
    known)."""
    names = {card.node: card.name for card in service.readings.cards(service.reactor.now())}
    names |= {NodeId(one): facts.name for one, facts in service.bus.state.nodes.items()}
    names[service.options.node] = service.options.node_name
    return {node: names.get(node) or node for node in service.record_lists.nodes()}


def chosen(names: Mapping[NodeId, str], wanted: Sequence[str], field: str) -> list[NodeId]:
    """Return the nodes that are wanted, by id or name, each once; all where none is named. Raises
    BadRequest, with the field, for one that the cluster does not have."""
    found: list[NodeId] = []
    for one in wanted:
        nodes = [node for node, name in names.items() if one in (node, name)]
        if not nodes:
            known = ", ".join(sorted(set(names.values())))
            raise bad_field(field, f"the cluster has no node {one!r}; it has {known}")
        found += [node for node in nodes if node not in found]
    return sorted(found) or sorted(names)


async def _asked(service: HttpService, node: NodeId) -> dict[str, Any]:
    name = names_of(service).get(node, node)
    told = {"node": node, "name": name}
    try:
        document = json.loads(await service.record_lists.questions.ask(node, VERB, []))
    except RecordsElsewhere as error:
        return {**told, "reached": False, "why": error.why, "message": str(error)}
    except (ValueError, TypeError) as error:
        message = f"node {name} told no document: {error}"
        return {**told, "reached": False, "why": "refused", "message": message}
    return {**told, "reached": True, "diagnostics": document}
