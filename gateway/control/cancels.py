"""Talks to the gateway processes of this and other nodes: stops a request at its owner.

A request id names the owner of the request: a node and an HTTP process. The node is called, and the
process that answers the call asks the owner. A repeated stop has no further effect.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from bus.calls import PROCESS_ANSWER_S, NodeCalls
from bus.calls.table import STOP_REQUEST
from bus.wire.calls.answers import Done, StopRequest
from bus.wire.errors import OwnerSilent
from bus.wire.ids import RequestId
from gateway.http_processes import HttpProcesses, process_of

LOST = "if it has died, the runners end its requests within 3 s"
REMEMBERED = 1024
"""How many stopped requests this process remembers."""


class Cancellable(Protocol):
    """This process's open requests."""

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request. Return False if the request is not open in this process."""
        ...


class RememberedCancels:
    """Stops this process's requests. A repeated stop has the same answer as the first, even if the
    request has ended since. The last `REMEMBERED` stops are remembered."""

    def __init__(self, owner: Cancellable) -> None:
        self._owner = owner
        self._stopped: OrderedDict[RequestId, None] = OrderedDict()

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request. Return False if this process neither has the request open nor remembers
        that it was stopped."""
        if self._owner.cancel(request_id):
            self._stopped[request_id] = None
            if len(self._stopped) > REMEMBERED:
                self._stopped.popitem(last=False)
        return request_id in self._stopped


class CancelRouter:
    """Stops a request of any gateway process of the cluster.

    `processes` is the number of HTTP processes of this node; `near` reaches these processes.
    """

    def __init__(self, *, processes: int, near: HttpProcesses, calls: NodeCalls) -> None:
        self._processes = processes
        self._near = near
        self._calls = calls
        calls.answer(STOP_REQUEST, self._stop_here)

    async def stop(self, request_id: RequestId) -> bool:
        """Stop a request on the node and process where it is open. Return False if no process has
        the request. Raises OwnerSilent if the process in the request's id does not answer, and
        CallFailed if the node does not answer."""
        stop = StopRequest(request=request_id)
        reply = await self._calls.ask_owner(request_id, STOP_REQUEST, stop)
        return reply is not None and reply.done

    async def _stop_here(self, call: StopRequest) -> Done:
        """Stop a request of this node."""
        number = process_of(call.request, self._calls.node)
        if number is None or number >= self._processes:
            return Done(done=False)
        is_stopped = await self._near.cancel(number, call.request)
        if is_stopped is None:
            raise OwnerSilent(f"HTTP process {number} of this node", PROCESS_ANSWER_S, LOST)
        return Done(done=is_stopped)
