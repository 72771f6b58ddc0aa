"""Talks to clients about all of them: what each has asked for here, and what counts for it."""

from __future__ import annotations

from falcon.asgi import Request, Response
from typing_extensions import TypedDict

from gateway.clients import ClientTold
from gateway.http.middleware import Resource, answer_json


class ClientsAnswer(TypedDict):
    """The clients of a node's gateway; `trouble` is what is wrong with `file`."""

    node: str
    file: str
    trouble: str
    clients: list[ClientTold]


class ClientList(Resource):
    """`GET /clients`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the clients of this node's gateway, those that were seen last first, and what
        is wrong with `clients.toml` as it is now."""
        clients = self.service.clients
        told: ClientsAnswer = {
            "node": self.service.options.node,
            "file": "" if clients.book.file is None else str(clients.book.file),
            "trouble": clients.book.trouble,
            "clients": await clients.told(),
        }
        answer_json(resp, told)
