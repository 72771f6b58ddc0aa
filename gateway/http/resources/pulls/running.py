"""Talks to clients that wait for a worker's work: sends a stream of states, or one answer at the
end.

A stream begins once the work has begun, or after `QUICK_S`. Until then, a refusal is answered with
an HTTP status. If the client disconnects, the work stops, unless other clients wait for the same
work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from falcon.asgi import Request, Response

from bus.wire.errors import OwnerSilent
from gateway.dialects import faults, sse
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.exchange import hung_up
from gateway.http.scope import scope_of

QUICK_S = 5.0
"""A stream begins after this many seconds, even if the work has not begun. A refusal before the
stream begins gets an HTTP status."""
AGAIN_S = 4.0
"""An unchanged line is sent again after this long."""
CONTENT_TYPE = "application/x-ndjson"
UNDECIDED = ("waiting", "listing")


class WorkState(Protocol):
    """The progress of a worker's work; its last phase is `done` or `failed`."""

    @property
    def phase(self) -> str: ...


State = TypeVar("State", bound=WorkState)


@dataclass(frozen=True, slots=True)
class Telling(Generic[State]):
    """Functions that render states of the work. `fault` renders a failed state, `line` any other
    state, and `error_line` an error in a stream that has begun. `listed` is awaited when the work
    is done."""

    fault: Callable[[State], HttpFault]
    line: Callable[[State], bytes]
    error_line: Callable[[HttpFault], bytes]
    content_type: str = CONTENT_TYPE
    listed: Callable[[], Awaitable[None]] | None = None


class RunningWork(Generic[State]):
    """Work that one client waits for. Methods raise HttpFaultRaised if the work fails before any
    part of the answer is sent."""

    def __init__(
        self, req: Request, states: AsyncGenerator[State], telling: Telling[State]
    ) -> None:
        self._states = states
        self._telling = telling
        self._gone = asyncio.ensure_future(hung_up(scope_of(req).receive))
        self._next: asyncio.Future[State] | None = None

    async def whole(self) -> State:
        """Return the last state, once the work is done. Raises HttpFaultRaised."""
        async with contextlib.aclosing(self._until_end()) as states:
            last = None
            async for state in states:
                last = state
        if last is None or last.phase != "done":
            raise HttpFaultRaised(HttpFault(499, "client_closed", "the client hung up"))
        return last

    async def stream(self, resp: Response) -> None:
        """Answer with a line for each state. Raises HttpFaultRaised for an early failure."""
        states = self._until_end()
        first: list[State] = []
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(QUICK_S):
                while not first or first[-1].phase in UNDECIDED:
                    # shielded: the timeout must not cancel the state, which `_lines` awaits
                    self._next = self._next or asyncio.ensure_future(anext(states))
                    state = await asyncio.shield(self._next)
                    self._next = None
                    first.append(state)
        resp.content_type = self._telling.content_type
        resp.set_headers(sse.HEADERS)
        resp.stream = self._lines(states, first)

    async def _lines(
        self, states: AsyncGenerator[State], first: list[State]
    ) -> AsyncGenerator[bytes]:
        sent, sent_at, now = b"", 0.0, asyncio.get_running_loop().time
        try:
            while True:
                if first:
                    state = first.pop(0)
                else:
                    state = await (self._next or anext(states))
                    self._next = None
                # repeat an unchanged line now and then as a sign of life
                line = self._telling.line(state)
                if line != sent or now() - sent_at >= AGAIN_S:
                    sent, sent_at = line, now()
                    yield line
        except StopAsyncIteration:
            return
        except HttpFaultRaised as refused:
            yield self._telling.error_line(refused.fault)
        finally:
            await self._close(states)

    async def _close(self, states: AsyncGenerator[State]) -> None:
        if self._next is not None:
            self._next.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, HttpFaultRaised):
                await self._next
        await states.aclose()

    async def _until_end(self) -> AsyncGenerator[State]:
        """Yield states until the work is done or the client is gone. Raises HttpFaultRaised."""
        try:
            async with contextlib.aclosing(self._states) as states:
                async for state in states:
                    if self._gone.done():
                        return
                    if state.phase == "failed":
                        raise HttpFaultRaised(self._telling.fault(state))
                    if state.phase == "done" and self._telling.listed is not None:
                        await self._telling.listed()
                    yield state
        except OwnerSilent as silent:
            raise HttpFaultRaised(faults.owner_silent(str(silent), silent.waited_s)) from None
        finally:
            self._gone.cancel()


def error_line(fault: HttpFault) -> bytes:
    """Return the line for an error in a stream of our own API."""
    error: dict[str, Any] = {"code": fault.code, "message": fault.message, "status": fault.status}
    if fault.retry_after_s is not None:
        error["retry_after_s"] = fault.retry_after_s
    return json_bytes({"error": error}) + b"\n"
