"""Talks to the other HTTP processes of this gateway: the requests, answers and clients of each.

A request id contains the number of the process that owns the request. A process can ask another
process to stop a request, or to stop a request whose answer is stored. It can also ask for lists:
open requests, problems of the records, and clients. One report is sent without waiting for replies:
which clients are in cooldown, and which have waiting requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from typing_extensions import TypedDict

from bus.calls import ProcessCalls, table
from bus.links.reactor import Reactor
from bus.process.endpoints import Endpoints
from bus.wire.calls.answers import Done
from bus.wire.calls.jobs import Noted
from bus.wire.calls.processes import (
    ClientsRead,
    NoteRests,
    OpenRequestRow,
    OpenRequestsRead,
    ProblemsRead,
    ReadClients,
    ReadOpenRequests,
    ReadProblems,
    RestRow,
    StopAnswerHere,
    StopHere,
)
from bus.wire.ids import NodeId, RequestId, owner_of

MOST_DIGITS = 4
"""A process number has fewer digits."""


def process_of(request: RequestId, node: NodeId) -> int | None:
    """Return the number of the HTTP process of `node` that made a request id; None if another node
    made the id, or no gateway."""
    owner = owner_of(request)
    digits = owner[1][1:] if owner is not None and owner[0] == node else ""
    is_number = digits.isascii() and digits.isdigit() and len(digits) < MOST_DIGITS
    return int(digits) if is_number else None


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
        """Stop a running request whose answer will be stored for this owner. Return False if this
        process has no such open request."""
        ...

    records: Any
    """The node's records (`NodeRecords`), whose `condition` lists their problems."""
    clients: Any
    """The clients of this process (`AskingClients`). The process reports them to the other
    processes, and receives their clients."""


class HttpProcesses:
    """This process among the HTTP processes of its gateway. The process keeps its `number` until
    `close`."""

    def __init__(self, endpoints: Endpoints, reactor: Reactor, own: ProcessRequests) -> None:
        self._own = own
        self._calls = calls = ProcessCalls(endpoints, reactor)
        self.number = calls.number
        self.close = calls.close
        calls.answer(table.STOP_HERE, self._stop)
        calls.answer(table.STOP_ANSWER_HERE, self._stop_answer)
        calls.answer(table.READ_OPEN_REQUESTS, self._open_requests)
        calls.answer(table.READ_PROBLEMS, self._problems)
        calls.answer(table.READ_CLIENTS, self._clients)
        calls.answer(table.NOTE_RESTS, self._note_rests)

    async def cancel(self, number: int, request_id: RequestId) -> bool | None:
        """Have the process with this number stop a request. Return None if that process does not
        answer."""
        reply = await self._calls.ask(number, table.STOP_HERE, StopHere(request=request_id))
        return None if reply is None else reply.done

    async def stop_answer(self, number: int, request_id: RequestId, owner: str) -> bool | None:
        """Have a process stop a running request whose answer will be stored for this owner. Return
        None if that process does not answer."""
        stop = StopAnswerHere(owner=owner, request=request_id)
        reply = await self._calls.ask(number, table.STOP_ANSWER_HERE, stop)
        return None if reply is None else reply.done

    async def open_requests(self, processes: int) -> list[OpenRequestTold]:
        """Return the open requests of all `processes` HTTP processes. Silent processes are left
        out."""
        replies = await self._calls.ask_each(
            processes, table.READ_OPEN_REQUESTS, ReadOpenRequests()
        )
        rows = [row for reply in replies.values() for row in reply.requests]
        return [cast(OpenRequestTold, row.model_dump()) for row in rows]

    async def record_problems(self, processes: int) -> list[str]:
        """Return the problems of the node's records that any of `processes` HTTP processes reports,
        without repeats."""
        replies = await self._calls.ask_each(processes, table.READ_PROBLEMS, ReadProblems())
        return [*dict.fromkeys(text for reply in replies.values() for text in reply.problems)]

    async def clients(self, processes: int) -> dict[int, ClientsRead]:
        """Return the clients of each of `processes` HTTP processes, by its number. Silent processes
        are left out."""
        return await self._calls.ask_each(processes, table.READ_CLIENTS, ReadClients())

    def tell_rests(self, processes: int, rows: Sequence[RestRow]) -> None:
        """Send to the other processes which clients of this process are in cooldown or have waiting
        requests."""
        rests = NoteRests(number=self.number, rows=tuple(rows))
        self._calls.tell_others(processes, table.NOTE_RESTS, rests)

    # --- to answer -------------------------------------------------------------------------------

    def _stop(self, call: StopHere) -> Done:
        return Done(done=self._own.cancel(call.request))

    def _stop_answer(self, call: StopAnswerHere) -> Done:
        return Done(done=self._own.stop_answer(call.request, call.owner))

    def _open_requests(self, _call: ReadOpenRequests) -> OpenRequestsRead:
        rows = self._own.open_requests()
        return OpenRequestsRead(requests=tuple(OpenRequestRow(**row) for row in rows))

    def _problems(self, _call: ReadProblems) -> ProblemsRead:
        return ProblemsRead(problems=tuple(map(str, self._own.records.condition.problems)))

    def _clients(self, _call: ReadClients) -> ClientsRead:
        return self._own.clients.report()

    def _note_rests(self, call: NoteRests) -> Noted:
        self._own.clients.heard(call.number, call.rows)
        return Noted()
