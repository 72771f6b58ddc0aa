"""Talks to the gateways of all nodes: combines the diagnostics of all nodes in one answer.

All nodes are asked at the same time for the document that they return for `GET
/v1/diagnostics/node`. If a node is unreachable, late or refuses, its entry in the answer has the
reason.
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
        """Answer with an entry for each node, by id: its document, or the reason why the node was
        not reached."""
        service = self.service
        wanted = req.get_param_as_list("node", default=[])
        nodes = chosen(names_of(service), [word for word in wanted if word], "node")
        entries = await asyncio.gather(*(_entry(service, node) for node in nodes))
        missing = [entry for entry in entries if not entry["reached"]]
        tell_missing(resp, [f"{entry['name']} ({entry['why']})" for entry in missing])
        answer_json(resp, {"asked": service.options.node, "nodes": entries})


class PeerDiagnostics(Resource):
    """`GET /v1/diagnostics/cluster/{node}`."""

    async def on_get(self, _req: Request, resp: Response, node: str) -> None:
        """Answer with the document of `GET /v1/diagnostics/node` of a node, by id or name."""
        where = node_named(self.service, node)
        try:
            resp.data = await self.service.record_lists.questions.ask(where, VERB, [])
        except RecordsElsewhere as error:
            fault = faults.records_elsewhere(error.why, str(error), error.waited_s)
            raise HttpFaultRaised(fault) from error


def answer_node(service: HttpService) -> None:
    """Let other nodes' gateways read this node's document."""

    async def send_document(_arguments: Any) -> bytes:
        return json_bytes(await node_document(service, DiagnosticsTiming()))

    service.record_lists.questions.answer(VERB, send_document)


async def _entry(service: HttpService, node: NodeId) -> dict[str, Any]:
    name = names_of(service).get(node, node)
    head = {"node": node, "name": name}
    try:
        document = json.loads(await service.record_lists.questions.ask(node, VERB, []))
    except RecordsElsewhere as error:
        return {**head, "reached": False, "why": error.why, "message": str(error)}
    except (ValueError, TypeError) as error:
        message = f"node {name} sent no document: {error}"
        return {**head, "reached": False, "why": "refused", "message": message}
    return {**head, "reached": True, "diagnostics": document}
