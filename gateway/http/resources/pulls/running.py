"""Talks to clients about what a worker does for them for as long as they wait: a line for each
state, or one answer at the end.

A stream begins once it is known that there is something to do, or after a moment: what is refused
before that is refused with a status. A client that hangs up lets go of the work, which then stops,
unless others wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from falcon.asgi import Request, Response

from gateway.cluster.cancels import OwnerSilent
from gateway.dialects import sse
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.middleware import receive_of
from gateway.http.running import hung_up

QUICK_S = 5.0
"""So long a streamed answer waits for its status."""
AGAIN_S = 4.0
CONTENT_TYPE = "application/x-ndjson"
UNDECIDED = ("waiting", "listing")


class WorkState(Protocol):
    """How far the work of a worker is; it ends with `done` or `failed`."""

    @property
    def phase(self) -> str:
        """Return the phase."""
        ...


State = TypeVar("State", bound=WorkState)


@dataclass(frozen=True, slots=True)
class Telling(Generic[State]):
    """How the states of a work are told: `fault` of a failed one, `line` of another one,
    `error_line` of a fault behind the first line. `listed` is awaited when all is done."""

    fault: Callable[[State], HttpFault]
    line: Callable[[State], bytes]
    error_line: Callable[[HttpFault], bytes]
    content_type: str = CONTENT_TYPE
    listed: Callable[[], Awaitable[None]] | None = None


class RunningWork(Generic[State]):
    """One client's work at a worker. Raises HttpFaultRaised where it fails before a word is
    said."""

    def __init__(
        self, req: Request, states: AsyncGenerator[State], telling: Telling[State]
    ) -> None:
        self._states = states
        self._telling = telling
        self._gone = asyncio.ensure_future(hung_up(receive_of(req)))
        self._next: asyncio.Future[State] | None = None

    async def whole(self) -> State:
        """Return the last state, once all is done."""
        async with contextlib.aclosing(self._until_end()) as states:
            last = None
            async for state in states:
                last = state
        if last is None or last.phase != "done":
            raise HttpFaultRaised(HttpFault(499, "client_closed", "the client hung up"))
        return last

    async def stream(self, resp: Response) -> None:
        """Answer with a line for each state, the last of which is the end."""
        states = self._until_end()
        first: list[State] = []
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(QUICK_S):
                while not first or first[-1].phase in UNDECIDED:
                    # shielded: the time is up for us, not for what is waited for
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
        said, said_at, now = b"", 0.0, asyncio.get_running_loop().time
        try:
            while True:
                if first:
                    state = first.pop(0)
                else:
                    state = await (self._next or anext(states))
                    self._next = None
                # what has not changed is said now and then, so that nobody takes us for dead
                told = self._telling.line(state)
                if told != said or now() - said_at >= AGAIN_S:
                    said, said_at = told, now()
                    yield told
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
        """Yield states until all is done, or the client is gone. Raises HttpFaultRaised."""
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
            raise HttpFaultRaised(owner_silent(silent)) from None
        finally:
            self._gone.cancel()


def owner_silent(silent: OwnerSilent) -> HttpFault:
    """Return the fault of a worker that does not answer."""
    text = f"{silent.owner} did not answer within {silent.waited_s:g} s; see `shoal nodes`"
    return HttpFault(504, "owner_silent", text)


def error_line(fault: HttpFault) -> bytes:
    """Return what is told of a fault in our own streams."""
    error: dict[str, Any] = {"code": fault.code, "message": fault.message, "status": fault.status}
    if fault.retry_after_s is not None:
        error["retry_after_s"] = fault.retry_after_s
    return json_bytes({"error": error}) + b"\n"
