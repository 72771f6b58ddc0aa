"""Talks to the gateway processes of this and other nodes: stops a request at its owner.

A request id names the owner of the request: a node and an HTTP process. A process of this node is
asked directly. Another node is asked over the control plane (`cancel.asked.<its node>`). Every
gateway process of that node receives the question. Only the owner answers, on `cancel.answered.<our
node>`. The control plane may drop messages, so questions are repeated; a repeated stop has no
further effect.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from bus.client import BusClient
from bus.process.identity import new_name
from bus.wire.codec import Envelope
from bus.wire.errors import ShoalError
from bus.wire.ids import NodeId, RequestId, owner_of
from bus.wire.messages.gateways import CancelAnswered, CancelAsked
from gateway.cluster import http_processes
from gateway.cluster.http_processes import HttpProcesses

ANSWER_S = 5.0
"""Time for an owner on another node to answer. It is long enough to notice a broken connection of a
plane (1.5 s of heartbeats) and to restore that connection."""
REPEAT_S = 0.4
REMEMBERED = 1024
"""How many stopped requests this process remembers."""


class OwnerSilent(ShoalError):
    """The owner of a request did not answer within `waited_s` seconds. `owner` names it for
    people."""

    def __init__(self, owner: str, waited_s: float) -> None:
        super().__init__(f"{owner} did not answer within {waited_s:g} s")
        self.owner = owner
        self.waited_s = waited_s


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


class RemoteCancels:
    """Stops requests of other nodes' gateways, and answers the questions of those gateways about
    requests of this node.

    `process` is this HTTP process's name in request ids (`h0`); `node` is this node.
    """

    def __init__(self, bus: BusClient, process: str, stopped: RememberedCancels) -> None:
        self._bus = bus
        self.node = bus.speaker.node
        self._process = process
        self._stopped = stopped
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        bus.hear(f"cancel.asked.{self.node}", self._answer)
        bus.hear(f"cancel.answered.{self.node}", self._answered)

    async def cancel(self, owner: NodeId, request_id: RequestId) -> bool:
        """Have another node's gateway stop a request.

        Return False if the request is not open on that node. Raises OwnerSilent after `ANSWER_S`.
        """
        question = CancelAsked(question=new_name("ask"), asker=self.node, request=request_id)
        waiting = self._waiting[question.question] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_S):
                while True:
                    self._bus.publish(f"cancel.asked.{owner}", question)
                    done, _ = await asyncio.wait([waiting], timeout=REPEAT_S)
                    if done:
                        return waiting.result()
        except TimeoutError:
            raise OwnerSilent(f"the gateway of node {owner}", ANSWER_S) from None
        finally:
            del self._waiting[question.question]

    def _answer(self, topic: str, envelope: Envelope) -> None:
        question = envelope.message
        if not isinstance(question, CancelAsked) or topic != f"cancel.asked.{self.node}":
            return
        if owner_of(question.request) != (self.node, self._process):
            return
        is_stopped = self._stopped.cancel(question.request)
        answer = CancelAnswered(question=question.question, found=is_stopped)
        self._bus.publish(f"cancel.answered.{question.asker}", answer)

    def _answered(self, _topic: str, envelope: Envelope) -> None:
        answer = envelope.message
        if isinstance(answer, CancelAnswered):
            waiting = self._waiting.get(answer.question)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer.found)


class CancelRouter:
    """Stops a request of any gateway process of the cluster.

    `processes` is the number of HTTP processes of this node; `near` reaches these processes.
    `is_node` says whether the cluster has a node of that id.
    """

    def __init__(
        self,
        *,
        processes: int,
        near: HttpProcesses,
        remote: RemoteCancels,
        is_node: Callable[[NodeId], bool],
    ) -> None:
        self._processes = processes
        self._near = near
        self._remote = remote
        self._is_node = is_node

    async def stop(self, request_id: RequestId) -> bool:
        """Stop a request on the node and process where it is open. Return False if no process has
        the request. Raises OwnerSilent if the process or node in the request's id does not answer.
        """
        owner = owner_of(request_id)
        if owner is None or not (owner[1].isascii() and owner[1][1:].isdigit()):
            return False
        node, number = owner[0], int(owner[1][1:])
        if node != self._remote.node:
            return self._is_node(node) and await self._remote.cancel(node, request_id)
        if number >= self._processes:
            return False
        is_stopped = await self._near.cancel(number, request_id)
        if is_stopped is None:
            raise OwnerSilent(f"HTTP process {number} of this node", http_processes.ANSWER_S)
        return is_stopped
