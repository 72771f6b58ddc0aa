"""Talks to the other HTTP processes of this gateway: makes calls, and answers theirs.

Each process takes the lowest free number and binds the socket `gateway-<number>.ask`. A call is a
message of three frames: the number of the call, its name, and its request. The answer has two
frames: the number of the call and the reply. The socket drops nothing, so nothing is repeated. A
process that does not answer within `PROCESS_ANSWER_S` counts as gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from bus.calls.table import CALLS, TypedCall
from bus.links.reactor import Reactor
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.wire.codec import pack_body, unpack_body
from bus.wire.errors import AlreadyRunning, BadMessage
from bus.wire.messages.gateways import CALL_REPLY_BYTES, CALL_REQUEST_BYTES
from bus.wire.messages.wire import Message

PROCESS_ANSWER_S = 1.0
MAX_PROCESSES = 64
Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


class ProcessCalls:
    """The calls of one HTTP process to the other HTTP processes of its node, and from them.
    `number` belongs to this process until `close`."""

    def __init__(self, endpoints: Endpoints, reactor: Reactor) -> None:
        self._endpoints = endpoints
        self._reactor = reactor
        self._router = Link("router")
        self.number = self._take_number()
        self._handlers: dict[str, Callable[[Any], Any]] = {}
        self._dealers: dict[int, Link] = {}
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._count = 0
        reactor.watch(self._router, self._receive_call)

    def answer(self, call: TypedCall[Q, R], by: Callable[[Q], R]) -> None:
        """Use `by` to answer a call; `by` must not wait and must not raise."""
        self._handlers[call.name] = by

    async def ask(self, number: int, call: TypedCall[Q, R], request: Q) -> R | None:
        """Return the reply of process `number`; None if no valid reply arrives in time."""
        if number == self.number:
            return self._handlers[call.name](request)
        count = self._next_count()
        waiting = self._waiting[count] = asyncio.get_running_loop().create_future()
        self._link(number).send(count, call.name.encode(), pack_body(request))
        try:
            async with asyncio.timeout(PROCESS_ANSWER_S):
                reply = await waiting
            return unpack_body(call.reply, reply, limit_bytes=CALL_REPLY_BYTES)
        except (TimeoutError, BadMessage):
            return None
        finally:
            del self._waiting[count]

    async def ask_each(self, processes: int, call: TypedCall[Q, R], request: Q) -> dict[int, R]:
        """Return the replies of all `processes` HTTP processes, by number. Silent processes are
        left out."""
        numbers = [self.number, *self._others(processes)]
        replies = await asyncio.gather(*(self.ask(number, call, request) for number in numbers))
        pairs = zip(numbers, replies, strict=True)
        return {number: reply for number, reply in pairs if reply is not None}

    def tell_others(self, processes: int, call: TypedCall[Q, R], request: Q) -> None:
        """Make a call to all other processes, without waiting for the replies."""
        for number in self._others(processes):
            self._link(number).send(self._next_count(), call.name.encode(), pack_body(request))

    def close(self) -> None:
        """Close the sockets, so that another process can take the number."""
        for link in (self._router, *self._dealers.values()):
            self._reactor.unwatch(link)
            link.close()

    def _next_count(self) -> bytes:
        self._count += 1
        return b"%d" % self._count

    def _others(self, processes: int) -> list[int]:
        return [number for number in range(processes) if number != self.number]

    def _take_number(self) -> int:
        for number in range(MAX_PROCESSES):
            try:
                self._router.bind(self._endpoints.gateway(number))
            except AlreadyRunning:
                continue
            return number
        self._router.close()
        raise AlreadyRunning(f"{MAX_PROCESSES} HTTP processes are already running, the limit")

    def _link(self, number: int) -> Link:
        link = self._dealers.get(number)
        if link is None:
            link = self._dealers[number] = Link("dealer")
            link.connect(self._endpoints.gateway(number))
            self._reactor.watch(link, self._receive_answer)
        return link

    def _receive_answer(self, frames: list[bytes]) -> None:
        waiting = self._waiting.get(frames[0])
        if waiting is not None and not waiting.done():
            waiting.set_result(frames[-1])

    def _receive_call(self, frames: list[bytes]) -> None:
        if len(frames) != len(("sender", "count", "name", "request")):
            return
        sender, count, name, packed = frames
        call = CALLS.get(name.decode(errors="replace"))
        handler = None if call is None else self._handlers.get(call.name)
        if call is None or handler is None:
            return
        try:
            request = unpack_body(call.request, packed, limit_bytes=CALL_REQUEST_BYTES)
        except BadMessage:
            return
        self._router.send(sender, count, pack_body(handler(request)))
