"""Talks to the gateway processes of this node and of others: stop a request, on any owner.

A request id names its owner: a node and an HTTP process. A process of this node is asked
directly; one of another node over the control plane, `cancel.asked.<its node>`, which every
gateway process there hears and the owner alone answers on `cancel.answered.<our node>`. Questions
are repeated, for that plane may drop them; to stop a request twice is to stop it once.
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
"""The owner of a request on another node answers within this: longer than it takes to notice that
a plane's connection has broken (1.5 s of heartbeats) and to make it again."""
REPEAT_S = 0.4
REMEMBERED = 1024
"""Requests that were stopped here and are still known to have been."""


class OwnerSilent(ShoalError):
    """The owner of a request, as `owner` names it, did not answer within `waited_s` seconds."""

    def __init__(self, owner: str, waited_s: float) -> None:
        super().__init__(f"{owner} did not answer within {waited_s:g} s")
        self.owner = owner
        self.waited_s = waited_s


class Cancellable(Protocol):
    """The keeper of this process's requests."""

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request; return False when it is not open here."""
        ...


class RememberedCancels:
    """This process's requests, stopped as often as is asked: a repeat says what the first time
    said, even when the request has ended since. `REMEMBERED` of them are known."""

    def __init__(self, owner: Cancellable) -> None:
        self._owner = owner
        self._stopped: OrderedDict[RequestId, None] = OrderedDict()

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request; return False when it was neither open here nor stopped before."""
        if self._owner.cancel(request_id):
            self._stopped[request_id] = None
            if len(self._stopped) > REMEMBERED:
                self._stopped.popitem(last=False)
        return request_id in self._stopped


class RemoteCancels:
    """Requests that gateways of other nodes own, and questions of theirs about ours.

    `process` is this HTTP process's name in request ids (`h0`); `node` is ours.
    """

    def __init__(self, bus: BusClient, process: str, stopped: RememberedCancels) -> None:
        self._bus = bus
        self.node = bus.speaker.node
        self._process = process
        self._stopped = stopped
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        bus.hear(f"cancel.asked.{self.node}", self._asked)
        bus.hear(f"cancel.answered.{self.node}", self._answered)

    async def cancel(self, owner: NodeId, request_id: RequestId) -> bool:
        """Have another node's gateway stop a request; return False when it is not open there.

        Raises OwnerSilent after `ANSWER_S`."""
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

    def _asked(self, topic: str, envelope: Envelope) -> None:
        asked = envelope.message
        if not isinstance(asked, CancelAsked) or topic != f"cancel.asked.{self.node}":
            return
        if owner_of(asked.request) != (self.node, self._process):
            return
        found = self._stopped.cancel(asked.request)
        answer = CancelAnswered(question=asked.question, found=found)
        self._bus.publish(f"cancel.answered.{asked.asker}", answer)

    def _answered(self, _topic: str, envelope: Envelope) -> None:
        answer = envelope.message
        if isinstance(answer, CancelAnswered):
            waiting = self._waiting.get(answer.question)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer.found)


class CancelRouter:
    """Stops a request of any gateway process of the cluster.

    `processes` is how many this node has, `near` reaches them; `is_node` says whether the cluster
    has a node.
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
        """Stop a request where it is open; return False when no process has it.

        Raises OwnerSilent when the process or node that its id names does not answer.
        """
        owner = owner_of(request_id)
        if owner is None or not (owner[1].isascii() and owner[1][1:].isdigit()):
            return False
        node, number = owner[0], int(owner[1][1:])
        if node != self._remote.node:
            return self._is_node(node) and await self._remote.cancel(node, request_id)
        if number >= self._processes:
            return False
        found = await self._near.cancel(number, request_id)
        if found is None:
            raise OwnerSilent(f"HTTP process {number} of this node", http_processes.ANSWER_S)
        return found
