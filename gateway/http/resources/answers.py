"""Talks to clients about stored answers: reads, labels, deletes, stops and continues answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import orjson
from falcon.asgi import Request, Response

from bus.calls import CallFailed, missing_of
from bus.wire.ids import RequestId
from gateway.dialects import api_table, dialect, faults, sse
from gateway.dialects.body import bad_field
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.exchange import found_answer
from gateway.http.callers import owner_of_kept
from gateway.http.middleware import Resource, read_body
from gateway.records import AllRecords, ListedQuery

STOPPED_S = 5.0
"""A stopped request ends within this time; its runner has 3 s to report the end."""
LOOKED_S = 0.05
LABELS_BYTES = 64 << 10


@dataclass(frozen=True)
class AnswerResource(Resource):
    """`GET` and `DELETE` of a stored answer."""

    endpoint: api_table.KeepsAnswers

    async def on_get(self, req: Request, resp: Response, answer_id: str) -> None:
        """Return the stored answer as it was sent; with `?stream=true` as events."""
        streams = (req.get_param("stream") or "false").casefold() not in ("false", "0")
        replayed = self.endpoint.replayed
        if streams and replayed is None:
            text = "stream: a stored answer cannot be streamed; omit this field"
            raise HttpFaultRaised(HttpFault(400, "invalid_value", text, field="stream"))
        answer = await _stored_answer(self.records, req, self.endpoint, answer_id)
        if streams and replayed is not None:
            after = req.get_param("starting_after")
            resp.data = replayed(answer, {} if after is None else {"starting_after": after})
            resp.content_type = sse.CONTENT_TYPE
        else:
            resp.data = self.endpoint.answer(answer)

    async def on_delete(self, req: Request, resp: Response, answer_id: str) -> None:
        """Delete the answer. 404 if it is not stored."""
        owner = await owner_of_kept(req, self.records.options)
        await _stored_answer(self.records, req, self.endpoint, answer_id)
        was_removed = await self.records.answers.remove(owner, request_id_of(answer_id))
        if not was_removed:
            raise HttpFaultRaised(faults.answer_not_found(self.endpoint.what, answer_id))
        resp.data = self.endpoint.deleted(answer_id)

    async def change(self, req: Request, answer_id: str, labels: bytes) -> dialect.KeptAnswer:
        """Replace the labels of a stored answer, and return it. Raises HttpFaultRaised (404)."""
        owner = await owner_of_kept(req, self.records.options)
        await _stored_answer(self.records, req, self.endpoint, answer_id)
        await self.records.answers.label(owner, request_id_of(answer_id), labels)
        return await _stored_answer(self.records, req, self.endpoint, answer_id)


@dataclass(frozen=True)
class AnswerItems(Resource):
    """`GET` of the input items of a stored answer."""

    endpoint: api_table.KeepsAnswers

    async def on_get(self, req: Request, resp: Response, answer_id: str) -> None:
        """Answer with the input items, including those of the earlier conversation."""
        answer = await _stored_answer(self.records, req, self.endpoint, answer_id)
        resp.data = self.endpoint.items(answer, items_query(req))


def items_query(req: Request) -> dict[str, str]:
    """Return the paging parameters of a query for items."""
    names = ("limit", "order", "after")
    return {name: value for name in names if (value := req.get_param(name)) is not None}


@dataclass(frozen=True)
class AnswerCancel(Resource):
    """`POST` that stops a running answer."""

    endpoint: api_table.KeepsAnswers

    async def on_post(self, req: Request, resp: Response, answer_id: str) -> None:
        """Stop the answer, and return its part so far. 400 if it has already ended, 404 if it is
        neither stored nor to be stored."""
        records = self.records
        owner, request = await owner_of_kept(req, records.options), request_id_of(answer_id)
        answer = await found_answer(records.answers, owner, request)
        if answer is None:
            answer = await self._stopped(owner, request, answer_id)
        else:
            status = cast(dict[str, object], orjson.loads(answer.answer)).get("status")
            if status != "cancelled":
                text = f"only a running answer can be cancelled; this one is '{status}'"
                raise HttpFaultRaised(HttpFault(400, "invalid_value", text))
        resp.data = answer.answer

    async def _stopped(self, owner: str, request: RequestId, answer_id: str) -> dialect.KeptAnswer:
        records = self.records
        stopped = await records.answers.stop(owner, request)
        end_at = records.reactor.now() + STOPPED_S
        while stopped and records.reactor.now() < end_at:
            answer = await found_answer(records.answers, owner, request)
            if answer is not None:
                return answer
            await asyncio.sleep(LOOKED_S)
        raise HttpFaultRaised(faults.answer_not_found(self.endpoint.what, answer_id))


async def _stored_answer(
    records: AllRecords, req: Request, endpoint: api_table.KeepsAnswers, answer_id: str
) -> dialect.KeptAnswer:
    answer = await found_answer(
        records.answers, await owner_of_kept(req, records.options), request_id_of(answer_id)
    )
    # a path serves only its own kind of answers
    if answer is None or bool(answer.listed) != isinstance(endpoint, api_table.KeepsListed):
        raise HttpFaultRaised(faults.answer_not_found(endpoint.what, answer_id))
    return answer


@dataclass(frozen=True, slots=True)
class AnswersPage:
    """A page of answers, whether more follow, and which nodes did not reply, with the reasons."""

    answers: tuple[dialect.KeptAnswer, ...]
    has_more: bool
    missing: tuple[str, ...]


async def listed_answers(
    records: AllRecords,
    owner: str,
    page: api_table.AskedList,
) -> AnswersPage:
    """Return a page of this owner's answers on all nodes, without answers deleted meanwhile. Raises
    BadRequest if the answer of `page.after` does not exist."""
    after = None
    if page.after is not None:
        last = await found_answer(records.answers, owner, request_id_of(page.after))
        if last is None or not last.listed:
            raise bad_field("after", f"no object with the id '{page.after[:80]}'")
        after = last.listed
    query = ListedQuery(
        page.limit + 1, page.descends, after, page.model, tuple(page.labels.items())
    )
    listed = await records.answers.listed(owner, query)
    shown = listed.requests[: page.limit]
    replies = await asyncio.gather(*(_answer_or_error(records, owner, name) for name in shown))
    gone = {missing_of(reply): None for reply in replies if isinstance(reply, CallFailed)}
    return AnswersPage(
        tuple(reply for reply in replies if isinstance(reply, dialect.KeptAnswer)),
        len(listed.requests) > page.limit,
        tuple({**dict.fromkeys(listed.missing), **gone}),
    )


async def _answer_or_error(
    records: AllRecords, owner: str, request: RequestId
) -> dialect.KeptAnswer | CallFailed | None:
    """Return an answer, None if it was deleted, or the error of a node that no longer replies."""
    try:
        return await records.answers.find(owner, request)
    except CallFailed as error:
        return error


@dataclass(frozen=True)
class LabelledAnswer(AnswerResource):
    """A stored answer whose labels can be replaced."""

    async def on_post(self, req: Request, resp: Response, answer_id: str) -> None:
        """Replace the answer's labels, and return the answer. 404 if it is not stored."""
        endpoint, options = self.endpoint, self.parts.options
        assert isinstance(endpoint, api_table.KeepsListed)
        body = await read_body(req, min(options.body_limit_bytes, LABELS_BYTES), options.body_s)
        labels = endpoint.labels(body, self.parts.parse_context().limits)
        resp.data = endpoint.answer(await self.change(req, answer_id, labels))
