"""Talks to clients who have a node make a model of another in fewer bits.

It is begun as an instance is placed, and answered at once. How far it is, `GET /instance/{id}`
says (its reading has bytes done and bytes in all); deleting the instance ends it and leaves
nothing. When it is done the instance is gone and the model listed; one that failed says why for a
minute.
"""

from __future__ import annotations

from falcon.asgi import Request, Response
from pydantic import Field

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages import commands
from bus.wire.messages.weights import USUAL_GROUP, Bits, GroupSize, Quantizing, usual_name
from gateway.dialects.body import Closed
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.instances import acknowledged, known_nodes


class QuantizeBody(Closed):
    """`POST /models/quantize`: `name` is what is made, else `MODEL-4bit`; `node` makes it, by its
    id or name, else this one where it has the model, else another that has."""

    model: str = Field(min_length=1, max_length=400)
    bits: Bits = 4
    name: str | None = Field(default=None, min_length=1, max_length=200)
    group_size: GroupSize = USUAL_GROUP
    node: str | None = None


class QuantizeAnswer(Closed):
    """The answer: what is made (`model`) of what (`source`), and the instance that makes it."""

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
        """Begin it, and answer with the instance."""
        service = self.service
        asked = await self.read(req, QuantizeBody)
        await service.catalog.wait_known()
        source = service.catalog.named(asked.model)
        name = ModelId(asked.name) if asked.name else usual_name(source, asked.bits)
        command = commands.QuantizeModel(
            command_id=service.command_id(),
            name=name,
            quantizing=Quantizing(source=source, bits=asked.bits, group_size=asked.group_size),
            node=self._node(asked.node, source),
        )
        answer = acknowledged(await service.command(command))
        card = service.catalog.cards().get(source)
        size_bytes = 0 if card is None else card.size_bytes
        answer_json(resp, {"model": name, "source": source, "source_bytes": size_bytes, **answer})

    def _node(self, word: str | None, source: ModelId) -> NodeId | None:
        service = self.service
        if word is not None:
            return known_nodes(service, [word], field="node")[0]
        here = service.catalog.card_here(source) is not None
        return service.bus.speaker.node if here else None
