"""Talks to the gateways of all nodes: what each node is doing, in one answer.

Every node is asked at once for what `GET /v1/diagnostics/node` tells there. One that is not there,
does not answer in time or refuses is named with the reason, in its place.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from falcon.asgi import Request, Response

from bus.wire.ids import NodeId
from gateway.cluster.record_questions import RecordsElsewhere
from gateway.dialects import faults
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFaultRaised
from gateway.http.diagnostics.node import DiagnosticsTiming, node_document
from gateway.http.diagnostics.peers import chosen, names_of, node_named
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


class PeerDiagnostics(Resource):
    """`GET /v1/diagnostics/cluster/{node}`."""

    async def on_get(self, _req: Request, resp: Response, node: str) -> None:
        """Answer with what `GET /v1/diagnostics/node` tells at the node of that id or name."""
        where = node_named(self.service, node)
        try:
            resp.data = await self.service.record_lists.questions.ask(where, VERB, [])
        except RecordsElsewhere as error:
            fault = faults.records_elsewhere(error.why, str(error), error.waited_s)
            raise HttpFaultRaised(fault) from error


def answer_node(service: HttpService) -> None:
    """Have this node's document told to the gateways of others."""

    async def told(_arguments: Any) -> bytes:
        """Return the document as JSON."""
        return json_bytes(await node_document(service, DiagnosticsTiming()))

    service.record_lists.questions.answer(VERB, told)


async def _asked(service: HttpService, node: NodeId) -> dict[str, Any]:
    name = names_of(service).get(node, node)
    told = {"node": node, "name": name}
    try:
        document = json.loads(await service.record_lists.questions.ask(node, VERB, []))
    except RecordsElsewhere as error:
        return {**told, "reached": False, "why": error.why, "message": str(error)}
    except (ValueError, TypeError) as error:
        message = f"node {name} sent no document: {error}"
        return {**told, "reached": False, "why": "refused", "message": message}
    return {**told, "reached": True, "diagnostics": document}
