"""Talks to the records: stores an answer, if its client asks for that.

The answer is stored before the client reads its end, because the client may immediately send a
request that continues from this answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gateway.dialects.dialect import KeptAnswer, ToKeep
from gateway.dialects.registry import request_id_of
from gateway.exchange.flow import Flow
from gateway.exchange.headers import NOT_KEPT_HEADER, one_line
from gateway.exchange.parts import Parts
from gateway.records import EndedTurn, job_of_run


async def announce(parts: Parts, flow: Flow) -> Flow:
    """Record that the answer is being generated, so that its owner can stop it."""
    if flow.parsed.to_keep is not None and flow.parsed.to_keep.keep:
        assert flow.running is not None
        request = flow.parsed.requests[0].request_id
        parts.records.answers.begin(flow.owner, request)
        flow.running.on_end.append(partial(parts.records.answers.end, request))
    return flow


async def keep(parts: Parts, flow: Flow) -> Flow:
    """Store the answer and the new items of its conversation. If that fails, note why in the
    flow."""
    to_keep = flow.parsed.to_keep
    if flow.answer is None or to_keep is None or not to_keep.writes:
        return flow
    why = await _store(parts, flow, to_keep, flow.answer)
    if why and not flow.is_streamed:
        flow.http.reply.set_header(NOT_KEPT_HEADER, one_line(why))
    return replace(flow, not_kept=why)


async def _store(parts: Parts, flow: Flow, to_keep: ToKeep, answer: bytes) -> str:
    stored = KeptAnswer(answer, to_keep.items, to_keep.listed, to_keep.labels)
    # a job's answer has the job's name, whichever run made it
    run = flow.parsed.requests[0].request_id
    turn = to_keep.turn
    items = None if turn is None else turn.output_items(answer)
    if turn is None or items is None:
        if not to_keep.keep:
            return ""
        return await parts.records.answers.keep(flow.owner, job_of_run(run), stored)
    return await parts.records.conversations.end(
        EndedTurn(
            owner=flow.owner,
            conversation=request_id_of(turn.conversation),
            run=run,
            answer=job_of_run(run),
            items=(*turn.items, *items),
            to_store=stored if to_keep.keep else None,
        )
    )
