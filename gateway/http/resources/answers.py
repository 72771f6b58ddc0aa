"""Talks to clients about answers that are kept: told, labelled, removed, stopped, and
gone on from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import orjson
from falcon.asgi import Request, Response

from bus.wire.ids import RequestId
from gateway.cluster.record_lists import missing_of
from gateway.cluster.record_questions import RecordsElsewhere
from gateway.dialects import api_table, dialect, faults, sse
from gateway.dialects.body import bad_field
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.http.callers import owner_of_kept
from gateway.http.middleware import Resource, read_aside, read_body
from gateway.records import (
    FAR_BYTES,
    MOST_BYTES,
    MOST_ITEMS,
    AnswersSilent,
    ListedQuery,
    RecordsUnavailable,
    conversation_full,
    conversation_not_found,
    conversation_too_far,
    job_of_run,
)
from gateway.service import HttpService

STOPPED_S = 5.0
"""A request that was told to stop has ended within this, for its runner has 3 s to say so."""
LOOKED_S = 0.05
LABELS_BYTES = 64 << 10


async def recalled(
    service: HttpService, made_by: dialect.RecallingDialect, parsed: dialect.Parsed, owner: str
) -> dialect.Parsed:
    """Return a body with the answer or the conversation that it goes on from, and the items that it
    has by their ids alone, where it names any.

    Raises HttpFaultRaised (400, 404, 413) where those are not kept for this owner, or have no room,
    BadRequest where all together are too long.
    """
    to_keep = parsed.to_keep
    if to_keep is None or not (to_keep.previous or to_keep.named or to_keep.turn):
        return parsed
    previous = None
    if to_keep.previous is not None:
        previous = await found_answer(service, owner, request_id_of(to_keep.previous))
        if previous is None or previous.listed:
            raise HttpFaultRaised(await _not_gone_on_from(service, owner, to_keep.previous))
    named = await named_items(service, made_by.item_named, to_keep.named, owner)
    limits = service.parse_context().limits
    before = () if previous is None else previous.items
    if to_keep.turn is not None:
        own = sum(map(len, (*to_keep.items, *named.values())))
        before = await items_before(service, owner, parsed, to_keep.turn.conversation, own)
    length = sum(map(len, (*named.values(), *before)))
    conversation = () if to_keep.turn is None else before
    return await read_aside(
        length, lambda: made_by.continued(parsed, previous, limits, named, conversation)
    )


async def _not_gone_on_from(service: HttpService, owner: str, answer_id: str) -> HttpFault:
    """Return the 400 for an answer that cannot be gone on from: one that is being made without its
    client, or was and failed, or is not here."""
    with records_told():
        job = await service.jobs.find(job_of_run(request_id_of(answer_id)), owner)
    if job is None or job.kind != "response" or job.state == "done":
        return faults.answer_not_found("Response", answer_id, "previous_response_id")
    return faults.answer_not_made(answer_id, job.state, "previous_response_id", job.is_open)


async def named_items(
    service: HttpService,
    item_named: Callable[[dialect.KeptAnswer, str], bytes | None],
    wanted: Sequence[tuple[str, RequestId]],
    owner: str,
) -> dict[str, bytes]:
    """Return items of kept answers by their ids, as `item_named` finds them in one; each answer is
    asked for once. Raises HttpFaultRaised (404)."""
    answers: dict[RequestId, dialect.KeptAnswer | None] = {}
    found: dict[str, bytes] = {}
    for item_id, request in wanted:
        if request not in answers:
            answers[request] = await found_answer(service, owner, request)
        kept = answers[request]
        there = kept is not None and not kept.listed
        item = item_named(kept, item_id) if kept is not None and there else None
        if item is None:
            raise HttpFaultRaised(faults.item_not_found(item_id))
        found[item_id] = item
    return found


async def items_before(
    service: HttpService, owner: str, parsed: dialect.Parsed, conversation_id: str, own_bytes: int
) -> tuple[bytes, ...]:
    """Return the items of a conversation that a request goes on with, which has so many bytes of
    its own; those that earlier runs of the same job have added are left out. Raises
    HttpFaultRaised (400, 404, 413)."""
    conversation = request_id_of(conversation_id)
    job = job_of_run(parsed.requests[0].request_id)
    with records_told():
        found = await service.conversations.items(owner, conversation, job)
    if found is None:
        fault = conversation_not_found(conversation_id, "conversation")
        raise HttpFaultRaised(fault)
    if len(found) >= MOST_ITEMS or sum(map(len, found)) + own_bytes > MOST_BYTES:
        fault = conversation_full("conversation")
        raise HttpFaultRaised(fault)
    if own_bytes > FAR_BYTES and not service.conversations.is_here(conversation):
        raise HttpFaultRaised(conversation_too_far("input"))
    return tuple(found)


@dataclass(frozen=True)
class AnswerResource(Resource):
    """`GET` and `DELETE` of a kept answer."""

    endpoint: api_table.KeepsAnswers

    async def on_get(self, req: Request, resp: Response, answer_id: str) -> None:
        """Answer with the answer as it was given, whole, or with `?stream=true` in events."""
        streams = (req.get_param("stream") or "false").casefold() not in ("false", "0")
        replayed = self.endpoint.replayed
        if streams and replayed is None:
            text = "stream: a stored answer is not streamed; omit it"
            raise HttpFaultRaised(HttpFault(400, "invalid_value", text, field="stream"))
        kept = await _kept(self.service, req, self.endpoint, answer_id)
        if streams and replayed is not None:
            after = req.get_param("starting_after")
            resp.data = replayed(kept, {} if after is None else {"starting_after": after})
            resp.content_type = sse.CONTENT_TYPE
        else:
            resp.data = self.endpoint.told(kept)

    async def on_delete(self, req: Request, resp: Response, answer_id: str) -> None:
        """Keep the answer no longer. 404 for one that is not there."""
        owner = await owner_of_kept(req, self.service.options)
        await _kept(self.service, req, self.endpoint, answer_id)
        with records_told():
            found = await self.service.answers.remove(owner, request_id_of(answer_id))
        if not found:
            raise HttpFaultRaised(faults.answer_not_found(self.endpoint.what, answer_id))
        resp.data = self.endpoint.deleted(answer_id)

    async def change(self, req: Request, answer_id: str, labels: bytes) -> dialect.KeptAnswer:
        """Give a kept answer other labels, and return it. Raises HttpFaultRaised (404)."""
        owner = await owner_of_kept(req, self.service.options)
        await _kept(self.service, req, self.endpoint, answer_id)
        with records_told():
            await self.service.answers.label(owner, request_id_of(answer_id), labels)
        return await _kept(self.service, req, self.endpoint, answer_id)


@dataclass(frozen=True)
class AnswerItems(Resource):
    """`GET` of the items that a kept answer was made from."""

    endpoint: api_table.KeepsAnswers

    async def on_get(self, req: Request, resp: Response, answer_id: str) -> None:
        """Answer with them, those of the conversation before included."""
        kept = await _kept(self.service, req, self.endpoint, answer_id)
        resp.data = self.endpoint.items(kept, items_query(req))


def items_query(req: Request) -> dict[str, str]:
    """Return what a query says of which items are told."""
    names = ("limit", "order", "after")
    return {name: value for name in names if (value := req.get_param(name)) is not None}


@dataclass(frozen=True)
class AnswerCancel(Resource):
    """`POST` that stops the making of an answer."""

    endpoint: api_table.KeepsAnswers

    async def on_post(self, req: Request, resp: Response, answer_id: str) -> None:
        """Stop it, and answer with what was made of it. 400 for one that has ended by itself, 404
        for one that is not kept, nor to be."""
        service = self.service
        owner, request = await owner_of_kept(req, service.options), request_id_of(answer_id)
        kept = await found_answer(service, owner, request)
        if kept is None:
            kept = await self._stopped(owner, request, answer_id)
        else:
            status = cast(dict[str, object], orjson.loads(kept.answer)).get("status")
            if status != "cancelled":
                text = f"only a running answer can be cancelled; this one is '{status}'"
                raise HttpFaultRaised(HttpFault(400, "invalid_value", text))
        resp.data = kept.answer

    async def _stopped(self, owner: str, request: RequestId, answer_id: str) -> dialect.KeptAnswer:
        service = self.service
        with records_told():
            stopped = await service.answers.stop(owner, request)
        end_at = service.reactor.now() + STOPPED_S
        while stopped and service.reactor.now() < end_at:
            kept = await found_answer(service, owner, request)
            if kept is not None:
                return kept
            await asyncio.sleep(LOOKED_S)
        raise HttpFaultRaised(faults.answer_not_found(self.endpoint.what, answer_id))


async def _kept(
    service: HttpService, req: Request, endpoint: api_table.KeepsAnswers, answer_id: str
) -> dialect.KeptAnswer:
    kept = await found_answer(
        service, await owner_of_kept(req, service.options), request_id_of(answer_id)
    )
    # answers of another kind have other paths
    if kept is None or bool(kept.listed) != isinstance(endpoint, api_table.KeepsListed):
        raise HttpFaultRaised(faults.answer_not_found(endpoint.what, answer_id))
    return kept


@dataclass(frozen=True, slots=True)
class AnswersTold:
    """A page of answers, whether there are more behind it, and whose are missing, with why."""

    answers: tuple[dialect.KeptAnswer, ...]
    has_more: bool
    missing: tuple[str, ...]


async def listed_answers(
    service: HttpService,
    owner: str,
    asked: api_table.AskedList,
) -> AnswersTold:
    """Return a page of this owner's answers on all nodes; those that go meanwhile are left out.
    Raises BadRequest where it is to begin behind one that is not there."""
    after = None
    if asked.after is not None:
        last = await found_answer(service, owner, request_id_of(asked.after))
        if last is None or not last.listed:
            raise bad_field("after", f"no object with the id '{asked.after[:80]}'")
        after = last.listed
    query = ListedQuery(
        asked.limit + 1, asked.descends, after, asked.model, tuple(asked.labels.items())
    )
    with records_told():
        listed = await service.answers.listed(owner, query)
        shown = listed.requests[: asked.limit]
        found = await asyncio.gather(*(_found_or_missing(service, owner, one) for one in shown))
    gone = {missing_of(one): None for one in found if isinstance(one, RecordsElsewhere)}
    return AnswersTold(
        tuple(one for one in found if isinstance(one, dialect.KeptAnswer)),
        len(listed.requests) > asked.limit,
        tuple({**dict.fromkeys(listed.missing), **gone}),
    )


async def _found_or_missing(
    service: HttpService, owner: str, request: RequestId
) -> dialect.KeptAnswer | RecordsElsewhere | None:
    """Return an answer; or why its node, which was there just now, does not tell it."""
    try:
        return await service.answers.find(owner, request)
    except RecordsElsewhere as error:
        return error


async def found_answer(
    service: HttpService, owner: str, request: RequestId
) -> dialect.KeptAnswer | None:
    """Return an answer of this owner's, also of another path; None where none is kept."""
    with records_told():
        return await service.answers.find(owner, job_of_run(request))


@contextmanager
def records_told() -> Generator[None]:
    """Tell a client why records cannot be read or changed: 503 or 504."""
    try:
        yield
    except AnswersSilent as error:
        fault = faults.records_elsewhere("silent", str(error), error.waited_s)
        raise HttpFaultRaised(fault) from None
    except RecordsElsewhere as error:
        fault = faults.records_elsewhere(error.why, str(error), error.waited_s)
        raise HttpFaultRaised(fault) from None
    except RecordsUnavailable as error:
        raise HttpFaultRaised(faults.records_unavailable(str(error))) from None


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
