"""Talks to the gateways of all nodes: combines the diagnostics of all nodes in one answer.

All nodes are asked at the same time for the document that they return for `GET
/v1/diagnostics/node`. If a node is unreachable, late or refuses, its entry in the answer has the
reason.
"""

from __future__ import annotations

import json
from typing import Any

from falcon.asgi import Request, Response

from bus.calls import Gathered, table
from bus.wire.calls.nodes import Document, ReadNode
from bus.wire.ids import NodeId
from gateway.cluster import Cluster
from gateway.dialects.encode import json_bytes
from gateway.http.callers import key_behind
from gateway.http.diagnostics.node import DiagnosticsTiming, node_document
from gateway.http.diagnostics.peers import ask_node, chosen, names_of, node_named
from gateway.http.middleware import Resource, answer_json, tell_missing


class ClusterDiagnostics(Resource):
    """`GET /v1/diagnostics/cluster[?node=NODE]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with an entry for each node, by id: its document, or the reason why the node was
        not reached."""
        cluster = self.cluster
        wanted = req.get_param_as_list("node", default=[])
        nodes = chosen(names_of(cluster), [word for word in wanted if word], "node")
        gathered = await cluster.calls.ask_each(
            table.READ_NODE, ReadNode(), nodes=nodes, key=key_behind(req)
        )
        entries = [_entry(node, names_of(cluster).get(node, node), gathered) for node in nodes]
        missing = [entry for entry in entries if not entry["reached"]]
        tell_missing(resp, [f"{entry['name']} ({entry['why']})" for entry in missing])
        answer_json(resp, {"asked": cluster.options.node, "nodes": entries})


class PeerDiagnostics(Resource):
    """`GET /v1/diagnostics/cluster/{node}`."""

    async def on_get(self, req: Request, resp: Response, node: str) -> None:
        """Answer with the document of `GET /v1/diagnostics/node` of a node, by id or name."""
        where = node_named(self.cluster, node)
        reply = await ask_node(self.cluster, req, where, table.READ_NODE, ReadNode())
        resp.data = reply.content


def answer_node(cluster: Cluster) -> None:
    """Let the gateways of all nodes read this node's document."""

    async def read(_call: ReadNode) -> Document:
        return Document(content=json_bytes(await node_document(cluster, DiagnosticsTiming())))

    cluster.calls.answer(table.READ_NODE, read)


def _entry(node: NodeId, name: str, gathered: Gathered[Document]) -> dict[str, Any]:
    head = {"node": node, "name": name}
    if (error := gathered.failures.get(node)) is not None:
        return {**head, "reached": False, "why": error.why, "message": str(error)}
    try:
        document = json.loads(gathered.replies[node].content)
    except ValueError as error:
        message = f"node {name} sent no document: {error}"
        return {**head, "reached": False, "why": "refused", "message": message}
    return {**head, "reached": True, "diagnostics": document}
