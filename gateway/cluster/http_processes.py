"""Talks to the other HTTP processes of this gateway: each answers for the requests that it owns.

Each process takes the lowest free number and binds `gateway-<number>.ask`. A request id contains
the number of its owner. A process can ask another process to stop a request, or to stop a request
whose answer is stored. It can also ask for lists: open requests, problems of the records, and
clients. A process that does not answer within a second counts as gone. One message is sent without
a question: the list of clients that are in cooldown or wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, cast

from typing_extensions import TypedDict

from bus.links.reactor import Reactor
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.wire.codec import pack, unpack
from bus.wire.errors import AlreadyRunning, BadMessage
from bus.wire.ids import RequestId

ANSWER_S = 1.0
MAX_PROCESSES = 64
QUESTION_BYTES = 1 << 20
ANSWER_BYTES = 4 << 20
"""Most bytes of an answer. It is enough for the list of all requests that a process may have open.
"""


class OpenRequestTold(TypedDict):
    """An open request. `instance` is null while the request waits for an instance."""

    request: str
    model: str
    client: str | None
    priority: int
    instance: str | None
    waiting: bool
    tokens: int
    seconds: float


class ProcessRequests(Protocol):
    """A process's own requests. The other HTTP processes may ask about them."""

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request. Return False if the request is not open in this process."""
        ...

    def open_requests(self) -> list[OpenRequestTold]:
        """Return one plain record for each open request."""
        ...

    def stop_answer(self, request_id: RequestId, owner: str) -> bool:
        """Stop a request whose answer is stored for this owner. Return False if this process has no
        such open request."""
        ...

    records: Any
    """The node's records (`NodeRecords`), whose `condition` lists their problems."""
    clients: Any
    """The clients of this process (`AskingClients`). The process reports them to the other
    processes, and receives their clients."""


class HttpProcesses:
    """This process among the HTTP processes of its gateway. `number` belongs to this process until
    `close`."""

    def __init__(self, endpoints: Endpoints, reactor: Reactor, own: ProcessRequests) -> None:
        self._endpoints = endpoints
        self._reactor = reactor
        self._own = own
        self._router = Link("router")
        self.number = self._take_number()
        self._dealers: dict[int, Link] = {}
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        reactor.watch(self._router, self._question)

    async def cancel(self, number: int, request_id: RequestId) -> bool | None:
        """Have the process with this number stop a request. Return None if that process does not
        answer."""
        if number == self.number:
            return self._own.cancel(request_id)
        answer = await self._ask(number, ["cancel", request_id])
        return answer if isinstance(answer, bool) else None

    async def open_requests(self, processes: int) -> list[OpenRequestTold]:
        """Return the open requests of all `processes` HTTP processes. Silent processes are left
        out."""
        return self._own.open_requests() + await self._ask_all(processes, "open")

    async def record_problems(self, processes: int) -> list[str]:
        """Return the problems of the node's records that any of `processes` HTTP processes reports,
        without repeats."""
        problems = await self._ask_all(processes, "record problems")
        return [*dict.fromkeys([*self._own.records.condition.problems, *map(str, problems)])]

    async def client_rows(self, processes: int) -> dict[int, list[Any]]:
        """Return the `AskingClients.own_rows` of each of `processes` HTTP processes, by its number.
        Silent processes are left out."""
        return {
            self.number: self._own.clients.own_rows(),
            **await self._ask_each(processes, "clients"),
        }

    def tell_rests(self, processes: int, rows: Sequence[Any]) -> None:
        """Tell the other processes which clients of this process are in cooldown or wait."""
        for number in self._others(processes):
            self._link(number).send(pack([0, "rests", self.number, rows]))

    async def _ask_all(self, processes: int, question: str) -> list[Any]:
        """Return the answers of all other processes in one list. Silent processes are left out."""
        answers = await self._ask_each(processes, question)
        return [item for answer in answers.values() for item in answer]

    async def _ask_each(self, processes: int, question: str) -> dict[int, list[Any]]:
        others = self._others(processes)
        answers = await asyncio.gather(*(self._ask(number, [question]) for number in others))
        pairs = zip(others, answers, strict=True)
        return {at: cast(list[Any], answer) for at, answer in pairs if isinstance(answer, list)}

    def _others(self, processes: int) -> list[int]:
        return [number for number in range(processes) if number != self.number]

    async def stop_answer(self, number: int, request_id: RequestId, owner: str) -> bool | None:
        """Have another process stop a request whose answer is stored for this owner. Return None if
        that process does not answer."""
        answer = await self._ask(number, ["stop answer", request_id, owner])
        return answer if isinstance(answer, bool) else None

    def close(self) -> None:
        """Release the number."""
        for link in (self._router, *self._dealers.values()):
            self._reactor.unwatch(link)
            link.close()

    def _take_number(self) -> int:
        for number in range(MAX_PROCESSES):
            try:
                self._router.bind(self._endpoints.gateway(number))
            except AlreadyRunning:
                continue
            return number
        raise AlreadyRunning(f"{MAX_PROCESSES} HTTP processes are already running, the limit")

    async def _ask(self, number: int, question: Sequence[Any]) -> Any:
        """Return the answer of process `number`; None if none arrives in time."""
        link = self._link(number)
        self._count += 1
        count = self._count
        waiting = self._waiting[count] = asyncio.get_running_loop().create_future()
        link.send(pack([count, *question]))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await waiting
        except TimeoutError:
            return None
        finally:
            del self._waiting[count]

    def _link(self, number: int) -> Link:
        link = self._dealers.get(number)
        if link is None:
            link = self._dealers[number] = Link("dealer")
            link.connect(self._endpoints.gateway(number))
            self._reactor.watch(link, self._answered)
        return link

    def _answered(self, frames: list[bytes]) -> None:
        match _plain(frames[-1], ANSWER_BYTES):
            case [int(count), answer]:
                waiting = self._waiting.get(count)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
            case _:
                return

    def _question(self, frames: list[bytes]) -> None:
        match _plain(frames[-1], QUESTION_BYTES):
            case [int(count), "cancel", str(request_id)]:
                answer: Any = self._own.cancel(RequestId(request_id))
            case [int(count), "open"]:
                answer = self._own.open_requests()
            case [int(count), "record problems"]:
                answer = self._own.records.condition.problems
            case [int(count), "clients"]:
                answer = self._own.clients.own_rows()
            case [_, "rests", int(number), rows]:
                self._own.clients.heard(number, rows)
                return
            case [int(count), "stop answer", str(request_id), str(owner)]:
                answer = self._own.stop_answer(RequestId(request_id), owner)
            case _:
                return
        self._router.send(frames[0], pack([count, answer]))


def _plain(data: bytes, limit_bytes: int) -> Any:
    try:
        return unpack(data, limit_bytes=limit_bytes)
    except BadMessage:
        return None
