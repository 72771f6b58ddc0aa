"""Talks to the disk and to runners: continues a stream whose HTTP process died (decision 0101).

The request is parsed again, with the same ids and the same time. It begins with the answer of the
earlier process, and a runner makes the rest. All events are rendered again from the first one, so
each gets the number that it had.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from bus.process.logs import story_of
from bus.wire.ids import RequestId
from gateway.dialects.dialect import Parsed
from gateway.dialects.registry import endpoint_at
from gateway.exchange import (
    TAKEN_OVER,
    Asked,
    ClientWatch,
    Flow,
    LastingStream,
    OpenStream,
    Parts,
    Pipeline,
    StreamHead,
)
from gateway.records import JobRun

LOOK_S = 2.0
"""How often to look for streams whose process died."""


def continue_streams(parts: Parts) -> None:
    """Look every `LOOK_S` for streams whose process died, and continue them in this process, even
    while no client reads them."""
    looking: list[asyncio.Future[None]] = []

    def look() -> None:
        if not parts.dispatcher.draining and all(task.done() for task in looking):
            looking[:] = [asyncio.ensure_future(_continue_orphans(parts))]

    parts.reactor.every(LOOK_S, look)


async def _continue_orphans(parts: Parts) -> None:
    for request, owner in await parts.streams.files.orphans():
        try:
            await restored(parts, request, owner)
        except Exception as error:  # the client may ask again
            parts.log.warning("a stream can't continue", request=request, error=story_of(error))


class NoClient:
    """Stands for the connection of a client that is gone: it takes no bytes."""

    def __init__(self, parts: Parts, head: StreamHead) -> None:
        self.path = head.path
        self.reply = _NoReply()
        self.watch = ClientWatch(_never)
        self._parts = parts
        self._owner, self._body = head.owner, head.body

    async def body(self) -> bytes:
        body, self._body = self._body, b""
        self._parts.bodies.take(len(body))
        return body

    async def owner(self) -> str:
        return self._owner

    def headers(self) -> Mapping[str, str]:
        return {}

    def stream(
        self, pieces: AsyncGenerator[bytes], content_type: str, at_end: Callable[[], None]
    ) -> None:
        at_end()

    async def run_in_background(self, parsed: Parsed) -> None:
        raise AssertionError("a restored stream must not be submitted as a job")


class _NoReply:
    data: Any = None

    def set_header(self, name: str, value: str) -> None:
        pass

    def append_header(self, name: str, value: str) -> None:
        pass

    def delete_header(self, name: str) -> None:
        pass


async def _never() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


async def restored(parts: Parts, request: RequestId, owner: str) -> OpenStream | None:
    """Continue a stream of this owner that no process serves any more. None if there is none.
    Raises what the stages raise; another process may try again then."""
    claimed = await parts.streams.files.claim(request, owner)
    if claimed is None:
        return None
    head = claimed.head
    if head.fingerprint != parts.parse_context().fingerprint:
        claimed.journal.remove()  # another version may render other events
        return None
    lasting = LastingStream.taken_over(owner, head.wait_s, claimed.answer, claimed.journal)
    try:
        flow = Flow(_head_of(parts, head), NoClient(parts, head), lasting=lasting)
        await Pipeline(parts, flow, TAKEN_OVER).answer()
    except BaseException:
        lasting.leave()
        raise
    parts.log.info(
        "a stream continues in this process", request=request, moves=claimed.answer.moves
    )
    return parts.streams.of(request, owner)


def _head_of(parts: Parts, head: StreamHead) -> Asked:
    endpoint = endpoint_at(head.path)
    assert endpoint is not None, "the path of a restored stream has no endpoint"
    # like the run of a job, it gets the ids and the time that it had
    run = JobRun(head.owner, head.request, head.request, head.created_at_s)
    return Asked(
        kind="generate",
        dialect=endpoint.dialect,
        answer_id=head.request,
        came_at=parts.reactor.now(),
        key=head.key,
        sharer=head.sharer,
        client=parts.clients.named(head.sharer),
        run=run,
    )
