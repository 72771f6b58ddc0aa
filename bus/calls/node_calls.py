"""Talks to the gateways of other nodes: makes calls, and answers the calls of other nodes.

A call goes over the control plane as `call.asked.<node>`. The control plane may drop messages, so
the message is repeated. Each HTTP process of the node receives it and one of them answers; if that
one stays silent, the next answers. The caller fetches the reply piece by piece. A call to this node
itself runs its handler directly and raises the handler's errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bus.calls.failures import CallFailed, CallRefused, plain_refusal, refusal_error, silence
from bus.calls.gathering import Gathered
from bus.calls.held_replies import HeldReplies, HeldReply
from bus.calls.pending import REPEAT_S, WHOLE_S, PendingCall
from bus.calls.permission import Standing
from bus.calls.table import CALLS, TypedCall
from bus.client import BusClient
from bus.process.identity import new_name
from bus.process.logs import story_of
from bus.wire.calls.answers import Done
from bus.wire.codec import Envelope, pack_body, unpack_body
from bus.wire.errors import BadMessage, BadRequest, ShoalError
from bus.wire.ids import NodeId, RequestId, owner_of
from bus.wire.messages.gateways import (
    CALL_REPLY_BYTES,
    CALL_REQUEST_BYTES,
    CallAnswered,
    CallAsked,
    CallRefusal,
)
from bus.wire.messages.wire import Message

LOOK_S = 1.0
UNKNOWN_ATTEMPTS = 3
"""From this attempt on, a call from a node that this process does not know is refused. Earlier
attempts are ignored, because the node may be so new that its card has not arrived yet."""
Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
Handler = Callable[[Q], Awaitable[R]]
"""A function that computes the reply to a call. If it raises a ShoalError, the caller gets a
`CallFailed` with the error's text as its reason."""
Judge = Callable[[TypedCall[Any, Any], NodeId, str], CallRefusal | None]
"""Returns why a node may not make a call with an API key; None if it may."""


@dataclass(frozen=True, slots=True)
class Around:
    """Functions that tell the calls about the cluster. `standing` returns the state of a node
    (None: unknown), `everyone` the nodes of the cluster, and `judge` decides on permission.
    `refusal_of` returns the refusal for an error of a handler."""

    standing: Callable[[NodeId], Standing | None]
    everyone: Callable[[], Iterable[NodeId]]
    judge: Judge
    refusal_of: Callable[[ShoalError], CallRefusal] = plain_refusal


class NodeCalls:
    """The calls of one HTTP process: to the gateways of other nodes, and from them.

    `number` is the number of this HTTP process among the `processes` of this node.
    """

    def __init__(self, bus: BusClient, around: Around, *, number: int, processes: int) -> None:
        self._bus = bus
        self.node = bus.speaker.node
        self._around = around
        self._handlers: dict[str, Handler[Any, Any]] = {}
        self._pending: dict[str, tuple[PendingCall, asyncio.Event]] = {}
        self._held = HeldReplies(number, processes)
        self._computing: set[asyncio.Task[None]] = set()
        bus.hear(f"call.asked.{self.node}", self._receive_call)
        bus.hear(f"call.answered.{self.node}", self._receive_answer)
        bus.reactor.every(LOOK_S, lambda: self._held.forget(bus.reactor.now()))

    def answer(self, call: TypedCall[Q, R], by: Handler[Q, R]) -> None:
        """Use `by` to answer a call. It also answers when this process calls its own node."""
        assert call.name not in self._handlers, call.name
        self._handlers[call.name] = by

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the calls that this process answers."""
        return frozenset(self._handlers)

    def nodes(self) -> list[NodeId]:
        """Return the nodes of the cluster, including this node, sorted by id."""
        return sorted({self.node, *self._around.everyone()})

    # --- to call ---------------------------------------------------------------------------------

    async def ask(
        self,
        node: NodeId,
        call: TypedCall[Q, R],
        request: Q,
        *,
        key: str | None = None,
        within_s: float = WHOLE_S,
    ) -> R:
        """Return the reply of a node.

        `key` is required for a call with the right `admin`: the id of the cluster's API key behind
        the call, or "" for the owner of this node. `within_s` limits the whole call. Raises
        CallFailed; for a call to this node, raises the errors of its handler. Raises BadRequest if
        the request is too large.
        """
        if key is None and call.right == "admin":
            raise ValueError(f"{call.name} needs `key`, the id of the API key behind the call")
        if node == self.node:
            return await self._handlers[call.name](request)
        standing = self._around.standing(node)
        if standing is None:
            raise CallFailed(node, "unknown", f"the cluster has no node '{node}'")
        if standing.down:
            message = f"node {standing.name} is not connected: {standing.down}"
            raise CallFailed(standing.name, "down", message)
        packed = pack_body(request)
        if len(packed) > CALL_REQUEST_BYTES:
            limit = f"a call to another node holds at most {CALL_REQUEST_BYTES} bytes"
            raise BadRequest(f"the request for {standing.name} has {len(packed)} bytes; {limit}")
        message = CallAsked(call_id=new_name("call"), name=call.name, key=key or "", request=packed)
        pending = PendingCall(message, self._bus.reactor.now(), within_s, is_slow=call.is_slow)
        content = await self._fetch(node, standing.name, message.call_id, pending)
        try:
            return unpack_body(call.reply, content, limit_bytes=CALL_REPLY_BYTES)
        except BadMessage as error:
            refusal = CallRefusal(message=f"its reply to {call.name} is invalid: {error}")
            raise refusal_error(standing.name, refusal) from error

    async def ask_each(
        self,
        call: TypedCall[Q, R],
        request: Q,
        *,
        nodes: Sequence[NodeId] | None = None,
        key: str | None = None,
    ) -> Gathered[R]:
        """Ask several nodes at the same time (None: all nodes), and return their replies. Errors of
        other nodes are in the result; an error of this node's own handler is raised."""
        called = self.nodes() if nodes is None else nodes

        async def reply_of(node: NodeId) -> R | CallFailed:
            try:
                return await self.ask(node, call, request, key=key)
            except CallFailed as error:
                return error

        answers = await asyncio.gather(*(reply_of(node) for node in called))
        pairs = list(zip(called, answers, strict=True))
        return Gathered(
            {node: reply for node, reply in pairs if not isinstance(reply, CallFailed)},
            {node: error for node, error in pairs if isinstance(error, CallFailed)},
        )

    async def ask_owner(
        self, of: RequestId, call: TypedCall[Q, R], request: Q, *, key: str | None = None
    ) -> R | None:
        """Ask the node that made the request id `of`, and return its reply. None if the cluster has
        no such node. Raises the errors of `ask`."""
        owner = owner_of(of)
        if owner is None:
            return None
        try:
            return await self.ask(owner[0], call, request, key=key)
        except CallFailed as error:
            if error.why == "unknown":
                return None
            raise

    async def have_done(
        self, of: RequestId, call: TypedCall[Q, Done], request: Q, *, key: str | None = None
    ) -> bool:
        """Ask the node that made the request id `of` to change or stop something (`call`). Return
        whether it did; False if the cluster has no such node. Raises the errors of `ask`."""
        reply = await self.ask_owner(of, call, request, key=key)
        return reply is not None and reply.done

    def close(self) -> None:
        """Cancel the replies that are still being computed."""
        for task in self._computing:
            task.cancel()

    async def _fetch(self, node: NodeId, name: str, call_id: str, pending: PendingCall) -> bytes:
        """Return the whole reply. Raises CallFailed."""
        heard = asyncio.Event()
        self._pending[call_id] = pending, heard
        reactor = self._bus.reactor
        try:
            while pending.reply is None:
                if pending.refusal is not None:
                    raise refusal_error(name, pending.refusal)
                if pending.is_late(reactor.now()):
                    raise silence(name, pending.waited_s)
                heard.clear()
                self._bus.publish(f"call.asked.{node}", pending.message)
                try:
                    async with asyncio.timeout(REPEAT_S):
                        await heard.wait()
                except TimeoutError:
                    pending.repeat(reactor.now())
            return pending.reply
        finally:
            del self._pending[call_id]

    def _receive_answer(self, _topic: str, envelope: Envelope) -> None:
        answer = envelope.message
        if not isinstance(answer, CallAnswered) or answer.call_id not in self._pending:
            return
        pending, heard = self._pending[answer.call_id]
        if not pending.has_ended and pending.take(answer, self._bus.reactor.now()):
            heard.set()

    # --- to answer -------------------------------------------------------------------------------

    def _receive_call(self, topic: str, envelope: Envelope) -> None:
        message, asker = envelope.message, envelope.node
        if not isinstance(message, CallAsked) or topic != f"call.asked.{self.node}":
            return
        if not self._held.is_due(message):
            return
        now = self._bus.reactor.now()
        held = self._held.find(asker, message.call_id, now)
        if held is None:
            if self._around.standing(asker) is None and message.attempt < UNKNOWN_ATTEMPTS:
                return
            held = self._held.begin(asker, message.call_id, new_name("edition"), now)
            if held.refused is None:
                task = asyncio.ensure_future(self._compute(asker, message, held))
                self._computing.add(task)
                task.add_done_callback(self._computing.discard)
        self._publish(asker, held.answer(message))

    async def _compute(self, asker: NodeId, message: CallAsked, held: HeldReply) -> None:
        """Compute a reply, then send its first piece."""
        try:
            held.end(await self._reply(asker, message))
        except CallRefused as error:
            held.refused = error.refusal
        except ShoalError as error:
            held.refused = self._around.refusal_of(error)
        except Exception as error:
            self._bus.log.error(
                "cannot answer a call of another node", call=message.name, error=story_of(error)
            )
            held.refused = CallRefusal(message="the call failed on that node; see its log")
        self._publish(asker, held.answer(message))

    async def _reply(self, asker: NodeId, message: CallAsked) -> bytes:
        """Run the handler of a call. Raises CallRefused and the errors of the handler."""
        call, handler = CALLS.get(message.name), self._handlers.get(message.name)
        if call is None or handler is None:
            raise CallRefused(CallRefusal(message=f"unknown call '{message.name}'"))
        refusal = self._around.judge(call, asker, message.key)
        if refusal is not None:
            raise CallRefused(refusal)
        request = unpack_body(call.request, message.request, limit_bytes=CALL_REQUEST_BYTES)
        return pack_body(await handler(request))

    def _publish(self, asker: NodeId, answer: CallAnswered) -> None:
        self._bus.publish(f"call.answered.{asker}", answer)
