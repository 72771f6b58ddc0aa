"""Talks to the client and to the open streams: lets a client that disconnected read its stream
again, if its body sets `x_reattach_s`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import cast

from gateway.dialects import sse
from gateway.dialects.body import bad_field
from gateway.dialects.dialect import Dialect
from gateway.exchange.flow import Flow, Running
from gateway.exchange.headers import tell_ignored
from gateway.exchange.parts import Parts
from gateway.exchange.running import submitted
from gateway.exchange.streams import LastingStream, StreamHead, begin_with

FIELD = "x_reattach_s"


async def let_reattach(parts: Parts, flow: Flow) -> Flow:
    """Note that the client may read the stream again. If a provider may answer, the field is
    ignored and reported as ignored. Raises BadRequest if the answer cannot be read again, for
    example because it is not a stream."""
    parsed, head = flow.parsed, flow.head
    if why := _why_not(flow):
        raise bad_field(FIELD, why)
    if flow.trial is not None:
        tell_ignored(parts, flow.http.reply, head.dialect.name, (FIELD,))
        return flow
    wait_s, body, owner = parsed.extras.reattach_s, flow.body, await flow.http.owner()
    assert wait_s is not None
    parts.bodies.give_back(len(body))
    return replace(flow, body=b"", lasting=LastingStream(owner, wait_s, body))


def stream_on(parts: Parts, flow: Flow, pieces: AsyncGenerator[bytes]) -> None:
    """Begin the stream of an answer, and let the client read it. From now on the request continues
    even if the client disconnects."""
    lasting = flow.lasting
    assert lasting is not None
    stream = parts.streams.open(flow.parsed.requests[0].request_id, lasting)
    reader = stream.attach(-1)
    leave = partial(stream.leave, reader)
    stream.begin(
        _journalled(parts, flow, lasting, pieces),
        partial(parts.dispatcher.abandon, flow.exchange.inbox),
    )
    flow.http.watch.on_gone(leave)
    flow.http.stream(stream.follow(reader), sse.CONTENT_TYPE, leave)


async def _journalled(
    parts: Parts, flow: Flow, lasting: LastingStream, pieces: AsyncGenerator[bytes]
) -> AsyncGenerator[bytes]:
    """Yield the pieces, after the request has been written to the journal."""
    if lasting.earlier is None:
        head, parsed = flow.head, flow.parsed
        key, _, *place = head.sharer
        await lasting.begin(
            parts.streams.files,
            StreamHead(
                request=parsed.requests[0].request_id,
                path=flow.http.path,
                body=lasting.body,
                created_at_s=parsed.created_at_s,
                fingerprint=parsed.fingerprint,
                owner=lasting.owner,
                wait_s=lasting.wait_s,
                key=head.key,
                sharer=(key, "", *place),
            ),
        )
    async for piece in pieces:
        yield piece


async def take_over(parts: Parts, flow: Flow) -> Flow:
    """Submit a request together with the part of its answer that an earlier HTTP process received.
    If that answer is complete, it is only rendered, because that process has recorded and stored
    it."""
    lasting, head = flow.lasting, flow.head
    assert lasting is not None and lasting.earlier is not None
    earlier, now = lasting.earlier, parts.reactor.now
    parts.bodies.give_back(len(flow.body))
    flow = replace(flow, body=b"")
    exchange = parts.dispatcher.start(
        flow.parsed,
        key_id=head.key,
        sharer=head.sharer,
        takes_over=lambda request: begin_with(request, earlier, now()),
    )
    if earlier.is_complete:
        flow = replace(flow, parsed=replace(flow.parsed, to_keep=None))
        return replace(flow, running=Running(exchange, _record_nothing, []))
    return submitted(parts, flow, exchange)


def _record_nothing(_outcome: str, _status: int) -> None:
    pass


def _why_not(flow: Flow) -> str:
    """Return why the stream of a request can't be read again; empty if it can."""
    parsed, head = flow.parsed, flow.head
    if head.run is not None or parsed.background is not None:
        return "a job's events can be read again anyway; omit it"
    if not parsed.stream:
        return "only a stream can be read again: set stream to true, or omit it"
    if cast(Dialect, head.dialect).stream_content_type != sse.CONTENT_TYPE:
        return "Ollama's API has no event ids; use /v1/chat/completions, or omit it"
    if len(parsed.requests) > 1:
        return "a stream with several prompts can't be read again; send one prompt"
    if parsed.cuts:
        return "it can't be used for a conversation that may be cut; omit one of the two fields"
    return ""
