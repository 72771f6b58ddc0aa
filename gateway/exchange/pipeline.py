"""Talks to clients, through `HttpSide`: runs the stages of the table for one request.

All errors and cancellations pass through `Pipeline._run`. A request is recorded exactly once in the
request log, however it ends: as a refusal before it is submitted, as an answer afterwards. Each
candidate of a task counts as a request. An exchange that is repeated with a shorter conversation is
recorded only once. A request that runs in the background is recorded by the job's run. A request
that spills over to a provider is recorded once, where it ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import cast

from bus.process.clock import wall
from bus.process.logs import story_of
from gateway.dialects import sse
from gateway.dialects.dialect import (
    DatedRenderer,
    Dialect,
    KeepingStream,
    Parsed,
    StreamRenderer,
)
from gateway.dialects.faults import HttpFaultRaised, internal
from gateway.exchange.answering import comments_before, outcome_of
from gateway.exchange.errors import fault_of
from gateway.exchange.features import stream_on, try_in_order
from gateway.exchange.flow import Flow
from gateway.exchange.parts import Parts
from gateway.exchange.spilling import is_returned
from gateway.exchange.stages import TABLE, Part, Table


class Pipeline:
    """Runs the stages for one request. `flow` has the facts so far."""

    def __init__(self, parts: Parts, flow: Flow, table: Table = TABLE) -> None:
        self.flow = flow
        self._parts = parts
        self._table = table

    async def answer(self) -> Flow:
        """Answer the request. Returns when the answer is complete, or when a stream has begun.
        Raises what the stages raise."""
        try:
            await self._run("request")
            if self.flow.order is None:
                await self.attempt(self.flow)
            else:
                await try_in_order(self._parts, self)
        finally:
            if self.flow.body:
                self._parts.bodies.give_back(len(self.flow.body))
            if not self.flow.is_streamed:
                self.flow.http.watch.leave()
        return self.flow

    async def attempt(self, flow: Flow) -> None:
        """Run the stages for one candidate, until it has answered or its stream has begun."""
        self.flow = flow
        await self._run("candidate")
        while not (self.flow.is_over or self.flow.is_streamed):
            await self._run("submission", "answer", "cut")
            running = self.flow.running
            if self.flow.is_over or running is None:
                continue
            if self.flow.parsed.stream:
                dialect = cast(Dialect, self.flow.head.dialect)
                self.flow = replace(self.flow, is_streamed=True)
                pieces, content_type = self._streamed(dialect), dialect.stream_content_type
                if self.flow.lasting is None:
                    end = partial(running.end, "client_closed")
                    self.flow.http.stream(pieces, content_type, end)
                else:
                    stream_on(self._parts, self.flow, pieces)
            else:
                await self._run("warm", "keep", "record")

    async def _run(self, *parts: Part) -> None:
        """Run the stages of these parts of the table that apply, until the request is over. If a
        stage fails, record the request, unless its stream has begun: `_streamed` records that."""
        stage = None
        try:
            for part in parts:
                for stage in self._table[part]:
                    if self.flow.is_over:
                        return
                    if stage.when is None or stage.when(self.flow):
                        self.flow = await stage.run(self._parts, self.flow)
        except BaseException as error:
            if stage is not None and stage.is_recorded:
                self._record_failure(error)
            raise

    def _record_failure(self, error: BaseException) -> None:
        flow = self.flow
        fault = fault_of(error) if isinstance(error, Exception) else None
        if fault is not None and is_returned(flow, fault):
            if flow.running is not None:
                flow.running.give_way()
            return
        fault = fault or internal(flow.head.answer_id)
        if flow.running is None:
            self._parts.ended_requests.tell_refused(flow, fault)
        elif not flow.is_streamed:
            flow.running.end(fault.code, fault.status)

    # --- streams -------------------------------------------------------------------------------

    async def _streamed(self, dialect: Dialect) -> AsyncGenerator[bytes]:
        """Yield the bytes of a stream, and record it at its end."""
        outcome = "client_closed"
        renderer: StreamRenderer | None = None
        try:
            async for comment in self._before():
                yield comment
            inbox, lasting = self.flow.exchange.inbox, self.flow.lasting
            renderer = dialect.stream(self._counted(), load_s=inbox.load_s)
            dated = renderer if isinstance(renderer, DatedRenderer) else None
            await self._run("warm")
            if inbox.fault is None and not inbox.abandoned:
                yield renderer.open()
            take = partial(lasting.take, self.flow.exchange) if lasting else inbox.take
            while not inbox.abandoned:
                entries = await take()
                if dated is not None:
                    dated.at(wall())
                piece = renderer.render(entries) if entries else b""
                if inbox.abandoned:
                    break
                if inbox.fault is not None or renderer.ended:
                    async for last in self._ending(renderer, piece):
                        yield last
                    break
                for text in inbox.take_comments():
                    piece += renderer.comment(text)
                if piece:
                    yield piece
            outcome = outcome_of(self.flow.exchange)
        except HttpFaultRaised as refused:
            yield dialect.stream(self.flow.parsed).error(refused.fault)
        except Exception as error:
            reference = str(self.flow.parsed.requests[0].request_id)
            self._parts.log.error("a stream failed", request=reference, error=story_of(error))
            outcome = "internal_error"
            failed = renderer or dialect.stream(self.flow.parsed)
            yield failed.error(internal(reference))
        finally:
            self.flow.http.watch.leave()
            self.flow = replace(self.flow, outcome=outcome)
            await self._run("record")

    async def _before(self) -> AsyncGenerator[bytes]:
        """Yield comments until a runner has accepted the conversation. If the conversation is too
        long, cut it and submit it again."""
        while True:
            inbox = self.flow.exchange.inbox
            async for comment in comments_before(inbox):
                yield comment
            if not self.flow.parsed.cuts or inbox.early_fault is None:
                return
            self.flow = replace(self.flow, fault=inbox.early_fault)
            await self._run("cut")
            if self.flow.running is not None:
                return
            await self._run("submission")

    def _counted(self) -> Parsed:
        """Return the body with the number of prompt tokens that the runners reported."""
        tokens = sum(request.prompt_tokens for request in self.flow.exchange.requests)
        return replace(self.flow.parsed, prompt_tokens=tokens)

    async def _ending(self, renderer: StreamRenderer, piece: bytes) -> AsyncGenerator[bytes]:
        """Yield `piece` and the last bytes of a stream. The answer is stored before the last bytes
        are sent."""
        fault = self.flow.exchange.inbox.fault
        if fault is not None:
            piece += renderer.error(fault)
            yield await self._store(renderer) + piece
            return
        last = renderer.close()
        if piece and self._writes:
            yield piece  # its text does not wait for the disk
            piece = b""
        yield piece + await self._store(renderer) + last

    @property
    def _writes(self) -> bool:
        to_keep = self.flow.parsed.to_keep
        return to_keep is not None and to_keep.writes

    async def _store(self, renderer: StreamRenderer) -> bytes:
        """Store the answer of a stream, if the client wants that. If storing fails, return a
        comment with the reason, else b""."""
        if not self._writes:
            return b""
        self.flow = replace(self.flow, answer=cast(KeepingStream, renderer).answer)
        await self._run("keep")
        why = self.flow.not_kept
        return sse.comment(f"not kept: {why}") if why else b""
