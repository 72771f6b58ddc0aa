"""Talks to the service and a client's connection: an exchange under way, until its record.

It is counted as running, kept where it is to be kept, and recorded once, however it ends, by the
client's hang-up too; one that gives way to another is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from falcon.asgi import Request, Response

from bus.wire.tasks import ClientProfile
from gateway.dialects import sse
from gateway.dialects.dialect import (
    Extras,
    KeepingStream,
    KeptAnswer,
    Parsed,
    StreamRenderer,
    WholeDialect,
)
from gateway.dialects.faults import HttpFault, HttpFaultRaised, internal, of_error
from gateway.dialects.registry import request_id_of
from gateway.ended_requests import FINISHED, AskedOver
from gateway.http.callers import key_id, sharer_of
from gateway.http.connection import CAME_AT
from gateway.http.middleware import Receive, tell_ignored
from gateway.records import EndedTurn, Kind, job_of_run, job_run_of
from gateway.requests.clients import cooldown_of
from gateway.requests.dispatcher import Exchange
from gateway.requests.inbox import EntryInbox
from gateway.requests.shortened import shortened
from gateway.requests.tracing import TRACEPARENT, parent_of
from gateway.service import HttpService

CLOSED_REQUEST = 499
ATTEMPT = "shoal.attempt"
"""Where a request's scope has what it has to keep to as a candidate of a task."""
LET_IN = "shoal.let_in"
"""Where it has that its client may ask."""


def asked_over(
    service: HttpService, kind: Kind, dialect: WholeDialect, req: Request, resp: Response
) -> AskedOver:
    """Return what is known of a request before its body is read."""
    return AskedOver(
        kind=kind,
        dialect=dialect.name,
        started_at=req.scope.get(CAME_AT) or service.reactor.now(),
        key=key_id(req),
        client=service.clients.named(sharer_of(req, service.options, None)),
        answer_id=resp.get_header("x-request-id") or "",
        run=job_run_of(req.scope),
        attempt=req.scope.get(ATTEMPT),
        parent=parent_of(req.get_header(TRACEPARENT)),
    )


def of_client(
    service: HttpService, req: Request, asked: AskedOver, extras: Extras
) -> ClientProfile:
    """Note who asks, now that a body has said it; return what counts for that client."""
    clients = service.clients
    asked.client = clients.named(sharer_of(req, service.options, extras.client_id))
    profile = clients.profile(asked.client)
    if _is_bounded(asked):
        asked.cooldown_s = cooldown_of(extras, profile)
    return profile


def let_in(service: HttpService, req: Request, asked: AskedOver) -> None:
    """Raise HttpFaultRaised (429) for a client that may not ask now. Asked once for a request,
    whichever candidates of a task it is tried with."""
    if _is_bounded(asked) and not req.scope.get(LET_IN):
        service.clients.check(asked.client)
        req.scope[LET_IN] = True


def _is_bounded(asked: AskedOver) -> bool:
    """Return whether its client may have to rest for it: not for a job, which was let in when it
    was submitted, nor for a question about a prompt, which makes nothing."""
    return asked.run is None and asked.kind != "ask"


async def hung_up(receive: Receive) -> None:
    """Wait until the client of a connection goes; its body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientHangUp:
    """The end of a client's connection, from when its body was read on; `abandon` ends an inbox.

    It is listened for once for the length of a request, for a connection that was once listened to
    and left cannot be listened to again. What it would end may be replaced.
    """

    def __init__(self, receive: Receive, abandon: Callable[[EntryInbox], None]) -> None:
        self._receive = receive
        self._abandon = abandon
        self._inbox: EntryInbox | None = None
        self._task = asyncio.ensure_future(self._watch())

    def watch(self, inbox: EntryInbox) -> None:
        """End this inbox at the hang-up, and no longer the one before."""
        self._inbox = inbox

    def leave(self, inbox: EntryInbox) -> None:
        """Stop listening, unless another inbox is watched before the loop's next turn."""
        asyncio.get_running_loop().call_soon(self._stop_for, inbox)

    def _stop_for(self, inbox: EntryInbox) -> None:
        if self._inbox is inbox:
            self._task.cancel()

    async def _watch(self) -> None:
        await hung_up(self._receive)
        if self._inbox is not None:
            self._abandon(self._inbox)


@dataclass(slots=True)
class RunningExchange:
    """One exchange under way, and what will be recorded of it."""

    service: HttpService
    asked: AskedOver
    parsed: Parsed
    exchange: Exchange
    hang_up: ClientHangUp
    owner: str
    over: bool = False
    settle: Callable[[], None] | None = None
    """Counts its tokens for good, once it has begun."""

    @property
    def keeps(self) -> bool:
        """Return whether the answer is to be kept."""
        return self.parsed.to_keep is not None and self.parsed.to_keep.keep

    @property
    def writes(self) -> bool:
        """Return whether something is on the disk before the client reads the end: the answer, or
        what it adds to a conversation."""
        to_keep = self.parsed.to_keep
        return to_keep is not None and (to_keep.keep or to_keep.turn is not None)

    @property
    def outcome(self) -> str:
        """Return how the exchange ended: `FINISHED`, or the code of what went wrong."""
        inbox = self.exchange.inbox
        if inbox.abandoned:
            return "client_closed"
        if inbox.fault is not None:
            return inbox.fault.code
        reasons = (request.failed for request in self.exchange.requests)
        return next((reason for reason in reasons if reason is not None), FINISHED)

    def raise_early(self) -> None:
        """Raise HttpFaultRaised where nothing will come, and a status can still say why."""
        inbox = self.exchange.inbox
        if inbox.abandoned:
            fault = HttpFault(CLOSED_REQUEST, "client_closed", "the client went away")
            raise HttpFaultRaised(fault)
        if inbox.early_fault is not None:
            raise HttpFaultRaised(inbox.early_fault)

    async def in_time(self) -> None:
        """Wait for the first token where a task's candidate is asked, for as long as that may take.

        Raises HttpFaultRaised where it does not come, for another candidate may still answer.
        """
        attempt, inbox = self.asked.attempt, self.exchange.inbox
        if attempt is None:
            return
        if not await inbox.wait_begun(attempt.budget_s):
            progress = "; ".join(inbox.take_comments())
            raise HttpFaultRaised(attempt.too_late(self.parsed.model, progress))
        self.raise_early()
        attempt.began = True

    def gave_way(self, fault: HttpFault | None) -> Parsed | None:
        """End an exchange whose conversation did not fit and may be cut, and return its body with
        fewer turns; None where it stays."""
        shorter = None if fault is None else shortened(self.parsed, fault)
        if shorter is not None:
            self.give_way()
        return shorter

    def stay_warm(self) -> None:
        """Wish that the model stays as long as the body says."""
        extras = self.parsed.extras
        self.service.keep_alive(self.exchange.model, extras.wish_s, self.asked.client)

    def tell_unheeded(self, resp: Response) -> None:
        """Name in the answer's header what its model gives no effect, as far as that is known."""
        names = self.exchange.inbox.take_unheeded()
        tell_ignored(self.service, resp, self.asked.dialect, names)

    def begin(self) -> None:
        """Count the exchange as running; from now on its client rests."""
        self.service.running += 1
        self.service.clients.rests(self.asked.client, self.asked.cooldown_s)
        self.settle = self.service.api_keys.spends(self.asked.key, self._spent)
        if self.asked.run is not None:
            self.asked.run.computed = self.exchange.requests
        if self.keeps:
            self.service.answers.begin(self.owner, self.parsed.requests[0].request_id)

    async def keep(self, answer: bytes | None) -> str:
        """Keep the answer, where it is to be kept and is there, and add to its conversation, before
        its client reads the end, for it may go on from it at once. Return why that is not done;
        empty: nothing is to be said."""
        to_keep = self.parsed.to_keep
        if to_keep is None or answer is None or not self.writes:
            return ""
        kept = KeptAnswer(answer, to_keep.items, to_keep.listed, to_keep.labels)
        # a job's answer is found by the job's name, whichever run of it has made it
        run = self.parsed.requests[0].request_id
        turn = to_keep.turn
        said = None if turn is None else turn.said(answer)
        if turn is None or said is None:
            if not to_keep.keep:
                return ""
            return await self.service.answers.keep(self.owner, job_of_run(run), kept)
        return await self.service.conversations.end(
            EndedTurn(
                owner=self.owner,
                conversation=request_id_of(turn.conversation),
                run=run,
                answer=job_of_run(run),
                items=(*turn.items, *said),
                kept=kept if to_keep.keep else None,
            )
        )

    async def keep_streamed(self, renderer: StreamRenderer) -> bytes:
        """Keep a stream's answer as `keep` does; return what tells its client that it is not."""
        why = await self.keep(cast(KeepingStream, renderer).answer) if self.writes else ""
        return sse.comment(f"not kept: {why}") if why else b""

    def end(self, outcome: str = FINISHED, status: int = 200) -> None:
        """Record the exchange, once; what is still open of it is cancelled."""
        if not self.over:
            self.give_way()
            self.service.ended_requests.tell(
                self.exchange, self.asked, outcome=outcome, status=status
            )

    def give_way(self) -> None:
        """End the exchange without a record, for another one has its place; what is still open of
        it is cancelled."""
        self.over = True
        self.service.running -= 1
        if self.settle is not None:
            self.settle()
        if self.keeps:
            self.service.answers.end(self.parsed.requests[0].request_id)
        self.hang_up.leave(self.exchange.inbox)
        self.service.dispatcher.abandon(self.exchange.inbox)

    def _spent(self) -> int:
        """Return how many tokens its requests have used so far, those of questions left out."""
        return sum(request.spent_tokens for request in self.exchange.requests)

    @contextmanager
    def recorded_if_it_fails(self) -> Generator[None]:
        """Record how the exchange ended, should it fail before its stream began."""
        try:
            yield
        except HttpFaultRaised as error:
            self.end(error.fault.code, error.fault.status)
            raise
        except BaseException:
            self.end("internal_error", 500)
            raise


@contextmanager
def refusals_recorded(service: HttpService, asked: AskedOver) -> Generator[None]:
    """Record a request that is refused before it has an exchange."""
    try:
        yield
    except Exception as error:
        service.ended_requests.tell_refused(asked, of_error(error) or internal(asked.answer_id))
        raise


async def comments_before(inbox: EntryInbox) -> AsyncGenerator[bytes]:
    """Yield what is said while it is not settled how a request begins; then what of it has no
    effect, where that came too late for a header."""
    if not inbox.settled:
        yield sse.KEEP_ALIVE
    while not inbox.settled:
        await inbox.wait_settled(1.0)
        for text in inbox.take_comments():
            yield sse.comment(text)
    if unheeded := inbox.take_unheeded():
        yield sse.comment(f"ignored: {', '.join(unheeded)}")
