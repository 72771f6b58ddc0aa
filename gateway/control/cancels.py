"""Talks to the gateway processes of this and other nodes: stops a request at its owner.

A request id names the owner of the request: a node and an HTTP process. The node is called, and the
process that answers the call asks the owner. A repeated stop has no further effect.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from bus.calls import PROCESS_ANSWER_S, NodeCalls, ProcessCalls
from bus.calls.table import STOP_HERE, STOP_REQUEST
from bus.wire.calls.answers import Done, StopRequest
from bus.wire.calls.processes import StopHere
from bus.wire.errors import OwnerSilent
from bus.wire.ids import NodeId, RequestId, owner_of

LOST = "if that process has died, the runners end its requests within 3 s"
MOST_DIGITS = 4
"""A process number has fewer digits."""
REMEMBERED = 1024
"""How many stopped requests this process remembers."""


def process_of(request: RequestId, node: NodeId) -> int | None:
    """Return the number of the HTTP process of `node` that made a request id; None if another node
    made the id, or no gateway."""
    owner = owner_of(request)
    digits = owner[1][1:] if owner is not None and owner[0] == node else ""
    is_number = digits.isascii() and digits.isdigit() and len(digits) < MOST_DIGITS
    return int(digits) if is_number else None


class Cancellable(Protocol):
    """This process's open requests."""

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request. Return False if the request is not open in this process."""
        ...


class RememberedCancels:
    """Stops requests of this process. Each request belongs to one of `owners`. A repeated stop has
    the same answer as the first, even if the request has ended since. The last `REMEMBERED` stops
    are remembered."""

    def __init__(self, *owners: Cancellable) -> None:
        self._owners = owners
        self._stopped: OrderedDict[RequestId, None] = OrderedDict()

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request. Return False if this process neither has the request open nor remembers
        that it was stopped."""
        if any(owner.cancel(request_id) for owner in self._owners):
            self._stopped[request_id] = None
            if len(self._stopped) > REMEMBERED:
                self._stopped.popitem(last=False)
        return request_id in self._stopped


class CancelRouter:
    """Stops a request of any gateway process of the cluster.

    `processes` is the number of HTTP processes of this node; `near` reaches these processes.
    """

    def __init__(self, *, processes: int, near: ProcessCalls, calls: NodeCalls) -> None:
        self._processes = processes
        self._near = near
        self._calls = calls
        self._own: RememberedCancels | None = None
        calls.answer(STOP_REQUEST, self._stop_here)

    def answer_for(self, *owners: Cancellable) -> None:
        """Let callers in this process and in other processes stop this process's requests. Each
        request belongs to one of `owners`."""
        self._own = RememberedCancels(*owners)
        self._near.answer(STOP_HERE, lambda call: Done(done=self.cancel_here(call.request)))

    def cancel_here(self, request_id: RequestId) -> bool:
        """Stop a request of this process. Return False if this process does not know it."""
        return self._own is not None and self._own.cancel(request_id)

    async def stop(self, request_id: RequestId) -> bool:
        """Stop a request on the node and process where it is open. Return False if no process has
        the request. Raises OwnerSilent if the process in the request's id does not answer, and
        CallFailed if the node does not answer."""
        stop = StopRequest(request=request_id)
        return await self._calls.have_done(request_id, STOP_REQUEST, stop)

    async def _stop_here(self, call: StopRequest) -> Done:
        """Stop a request of this node."""
        number = process_of(call.request, self._calls.node)
        if number is None or number >= self._processes:
            return Done(done=False)
        stop = StopHere(request=call.request)
        reply = await self._near.ask(number, STOP_HERE, stop)
        if reply is None:
            raise OwnerSilent(f"HTTP process {number} of this node", PROCESS_ANSWER_S, LOST)
        if reply.done or self._processes == 1:
            return reply
        # a stream that its client reads again may have moved to another process
        replies = await self._near.ask_each(self._processes, STOP_HERE, stop)
        return Done(done=any(each.done for each in replies.values()))
