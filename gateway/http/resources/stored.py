"""Talks to clients about answers that are kept in lists: listed beside where they are made, and
labelled."""

from __future__ import annotations

from dataclasses import dataclass

from falcon.asgi import Request, Response

from gateway.dialects import api_table
from gateway.http.middleware import read_body
from gateway.http.resources.answers import (
    AnswerResource,
    found_answer,
    listed_answers,
    owner_of_answers,
)
from gateway.http.resources.exchange import GenerateResource

LABELS_BYTES = 64 << 10


@dataclass(frozen=True)
class ListedAnswers(GenerateResource):
    """A route that generates text, and tells of the answers that were made there and are kept."""

    endpoint: api_table.KeepsListed

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with a page of them; those that go meanwhile are left out."""
        service, owner = self.service, owner_of_answers(req, self.service)
        query = {name: value for name in req.params if (value := req.get_param(name)) is not None}
        page = self.endpoint.page(await listed_answers(service, owner), query)
        answers = [await found_answer(service, owner, one["request"]) for one in page.shown]
        resp.data = self.endpoint.listing([kept for kept in answers if kept is not None], page)


@dataclass(frozen=True)
class LabelledAnswer(AnswerResource):
    """What may be done with a kept answer that has labels: it is given others, too."""

    async def on_post(self, req: Request, resp: Response, answer_id: str) -> None:
        """Give the answer these labels alone, and answer with it. 404 for one that is not there."""
        endpoint, options = self.endpoint, self.service.options
        assert isinstance(endpoint, api_table.KeepsListed)
        body = await read_body(req, min(options.body_limit_bytes, LABELS_BYTES), options.body_s)
        labels = endpoint.labels(body, self.service.parse_context().limits)
        resp.data = endpoint.told(await self.change(req, answer_id, labels))
