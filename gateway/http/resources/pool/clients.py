"""Talks to clients about the clients of this gateway: their requests and their settings."""

from __future__ import annotations

from falcon.asgi import Request, Response
from typing_extensions import TypedDict

from gateway.access import ClientTold
from gateway.http.middleware import Resource, answer_json


class ClientsAnswer(TypedDict):
    """The clients of a node's gateway; `trouble` is the error in `file`, empty if there is none."""

    node: str
    file: str
    trouble: str
    clients: list[ClientTold]


class ClientList(Resource):
    """`GET /clients`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the clients of this node's gateway, most recent first, and the current error
        in `clients.toml`."""
        clients = self.parts.clients
        answer: ClientsAnswer = {
            "node": self.parts.options.node,
            "file": "" if clients.book.file is None else str(clients.book.file),
            "trouble": clients.book.trouble,
            "clients": await clients.all_clients(),
        }
        answer_json(resp, answer)
