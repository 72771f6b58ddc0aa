"""Talks to the records: adds to a request the stored answer, conversation or items that its body
names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from bus.wire.ids import RequestId
from gateway.dialects import dialect, faults
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.exchange.flow import Flow
from gateway.exchange.parts import Parts
from gateway.exchange.reading import read_aside
from gateway.records import (
    FAR_BYTES,
    MOST_BYTES,
    MOST_ITEMS,
    AnswerRecords,
    conversation_full,
    conversation_not_found,
    conversation_too_far,
    job_of_run,
)


async def recall_history(parts: Parts, flow: Flow) -> Flow:
    """If the body refers to stored answers, conversations or items, add these to the request."""
    owner = await flow.http.owner()
    # only a RecallingDialect sets `to_keep`
    recalling = cast(dialect.RecallingDialect, flow.head.dialect)
    return replace(flow, owner=owner, parsed=await recall(parts, recalling, flow.parsed, owner))


async def recall(
    parts: Parts, made_by: dialect.RecallingDialect, parsed: dialect.Parsed, owner: str
) -> dialect.Parsed:
    """Return a copy of the body that includes the previous answer, the conversation and the stored
    items that the body names by id. Raises HttpFaultRaised (400, 404, 413) if this owner has no
    such answer, conversation or item, or if the conversation is full. Raises BadRequest if the
    result is too long."""
    to_keep = parsed.to_keep
    if to_keep is None or not (to_keep.previous or to_keep.named or to_keep.turn):
        return parsed
    previous = None
    if to_keep.previous is not None:
        previous = await found_answer(parts.records.answers, owner, request_id_of(to_keep.previous))
        if previous is None or previous.listed:
            raise HttpFaultRaised(await _continuation_fault(parts, owner, to_keep.previous))
    named = await named_items(parts, made_by.item_named, to_keep.named, owner)
    limits = parts.parse_context().limits
    before = () if previous is None else previous.items
    if to_keep.turn is not None:
        own = sum(map(len, (*to_keep.items, *named.values())))
        before = await items_before(parts, owner, parsed, to_keep.turn.conversation, own)
    length = sum(map(len, (*named.values(), *before)))
    conversation = () if to_keep.turn is None else before
    return await read_aside(
        length, lambda: made_by.continued(parsed, previous, limits, named, conversation)
    )


async def _continuation_fault(parts: Parts, owner: str, answer_id: str) -> HttpFault:
    """Return the fault for an answer that cannot be continued, because it does not exist, is still
    being made in the background, or failed."""
    job = await parts.records.jobs.find(job_of_run(request_id_of(answer_id)), owner)
    if job is None or job.kind != "response" or job.state == "done":
        return faults.answer_not_found("Response", answer_id, "previous_response_id")
    return faults.answer_not_made(answer_id, job.state, "previous_response_id", job.is_open)


async def named_items(
    parts: Parts,
    item_named: Callable[[dialect.KeptAnswer, str], bytes | None],
    wanted: Sequence[tuple[str, RequestId]],
    owner: str,
) -> dict[str, bytes]:
    """Return the items of stored answers that have these ids. `item_named` finds an item in an
    answer. Each answer is read only once. Raises HttpFaultRaised (404)."""
    answers: dict[RequestId, dialect.KeptAnswer | None] = {}
    items: dict[str, bytes] = {}
    for item_id, request in wanted:
        if request not in answers:
            answers[request] = await found_answer(parts.records.answers, owner, request)
        answer = answers[request]
        has_items = answer is not None and not answer.listed
        item = item_named(answer, item_id) if answer is not None and has_items else None
        if item is None:
            raise HttpFaultRaised(faults.item_not_found(item_id))
        items[item_id] = item
    return items


async def items_before(
    parts: Parts, owner: str, parsed: dialect.Parsed, conversation_id: str, own_bytes: int
) -> tuple[bytes, ...]:
    """Return the items of a conversation that a request continues, without the items that earlier
    runs of the same job added. `own_bytes` is the size of the request's own items. Raises
    HttpFaultRaised (400, 404, 413)."""
    conversation = request_id_of(conversation_id)
    job = job_of_run(parsed.requests[0].request_id)
    items = await parts.records.conversations.items(owner, conversation, job)
    if items is None:
        fault = conversation_not_found(conversation_id, "conversation")
        raise HttpFaultRaised(fault)
    if len(items) >= MOST_ITEMS or sum(map(len, items)) + own_bytes > MOST_BYTES:
        fault = conversation_full("conversation")
        raise HttpFaultRaised(fault)
    if own_bytes > FAR_BYTES and not parts.records.conversations.is_here(conversation):
        raise HttpFaultRaised(conversation_too_far("input"))
    return tuple(items)


async def found_answer(
    answers: AnswerRecords, owner: str, request: RequestId
) -> dialect.KeptAnswer | None:
    """Return the answer `request` if this owner has stored it, whichever path made it; None if
    not."""
    return await answers.find(owner, job_of_run(request))
