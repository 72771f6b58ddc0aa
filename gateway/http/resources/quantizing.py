"""Talks to clients: starts the quantization of a model on a node.

The request starts an instance that does the work, and is answered immediately. `GET /instance/{id}`
shows the progress: its reading has the bytes done and the total bytes. Deleting the instance stops
the work and leaves no files. When the work is done, the instance is gone and the new model is
listed. A failed instance shows its reason for a minute.
"""

from __future__ import annotations

from falcon.asgi import Request, Response
from pydantic import Field

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages import commands
from bus.wire.messages.weights import USUAL_GROUP, Bits, GroupSize, Quantizing, usual_name
from gateway.dialects.body import Closed
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.instances import acknowledgement, known_nodes
from gateway.requests.catalog import whole_model


class QuantizeBody(Closed):
    """`POST /models/quantize`: `name` is the new model, by default `MODEL-4bit`. `node`, an id or a
    name, does the work; by default this node if it has the model, else another that has it."""

    model: str = Field(min_length=1, max_length=400)
    bits: Bits = 4
    name: str | None = Field(default=None, min_length=1, max_length=200)
    group_size: GroupSize = USUAL_GROUP
    node: str | None = None


class QuantizeAnswer(Closed):
    """The new model (`model`), its `source`, and the instance that does the work."""

    model: str
    source: str
    source_bytes: int
    instance: str
    command_id: str
    term: int
    index: int
    durability: str


class QuantizeModels(Resource):
    """`POST /models/quantize`."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Start the work, and answer with its instance."""
        cluster = self.cluster
        body = await self.read(req, QuantizeBody)
        await cluster.catalog.wait_known()
        source = whole_model(cluster.catalog, body.model, cluster.reactor.now())
        name = ModelId(body.name) if body.name else usual_name(source, body.bits)
        command = commands.QuantizeModel(
            command_id=cluster.command_id(),
            name=name,
            quantizing=Quantizing(source=source, bits=body.bits, group_size=body.group_size),
            node=self._node(body.node, source),
        )
        answer = acknowledgement(await cluster.command(command))
        card = cluster.catalog.cards().get(source)
        size_bytes = 0 if card is None else card.size_bytes
        answer_json(resp, {"model": name, "source": source, "source_bytes": size_bytes, **answer})

    def _node(self, word: str | None, source: ModelId) -> NodeId | None:
        cluster = self.cluster
        if word is not None:
            return known_nodes(cluster, [word], field="node")[0]
        here = cluster.catalog.card_here(source) is not None
        return cluster.bus.speaker.node if here else None
