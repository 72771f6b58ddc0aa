"""Talks to clients about nodes: rename, drain, forget. Each is one command to the leader."""

from __future__ import annotations

from falcon.asgi import Request, Response
from pydantic import Field

from bus.wire.errors import BadRequest
from bus.wire.ids import NodeId
from bus.wire.instances import DRAIN_S
from bus.wire.messages.commands import Command, DrainNode, ForgetNode, RenameNode
from gateway.cluster import Cluster
from gateway.dialects.body import Closed
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.instances import CommandDone, acknowledgement

ACTS = ("rename", "drain", "undrain", "forget", "remember")


class NodeBody(Closed):
    """`POST /node/{node}/{act}`; `name` is for `rename`, `drain_s` for `drain`."""

    name: str | None = Field(default=None, min_length=1, max_length=64)
    drain_s: float = Field(default=DRAIN_S, ge=0.0, le=3600.0)


class NodeAnswer(CommandDone):
    """A node was changed."""

    node: str


class NodeResource(Resource):
    """`/node/{node}/{act}`; `node` is an id or a name."""

    async def on_post(self, req: Request, resp: Response, node: str, act: str) -> None:
        """Change the node, and answer with the command's position in the log."""
        cluster = self.cluster
        body = await self.read(req, NodeBody)
        await cluster.catalog.wait_known()
        answer = await cluster.command(_command(cluster, node, act, body))
        changed: NodeAnswer = {"node": node, **acknowledgement(answer)}
        answer_json(resp, changed)


def _command(cluster: Cluster, node: str, act: str, body: NodeBody) -> Command:
    records = cluster.bus.state.nodes.values()
    named = [record.node for record in records if record.name == node]
    which = NodeId(named[0] if len(named) == 1 else node)
    command_id = cluster.command_id()
    match act:
        case "rename":
            if body.name is None:
                raise BadRequest("name is required", field="name")
            return RenameNode(command_id=command_id, node=which, name=body.name)
        case "drain" | "undrain":
            return DrainNode(
                command_id=command_id, node=which, draining=act == "drain", drain_s=body.drain_s
            )
        case "forget" | "remember":
            return ForgetNode(command_id=command_id, node=which, forgotten=act == "forget")
        case _:
            raise BadRequest(f"unknown action {act!r}; use {', '.join(ACTS)}", field="act")
