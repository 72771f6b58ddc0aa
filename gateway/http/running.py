"""Talks to the service and to a client's connection: handles one exchange (a request and its
answer) from its submission until it is recorded.

While an exchange runs, it counts as running, so that the process waits for it at shutdown. At its
end, the answer is stored if the client asked for that. Each exchange is recorded exactly once,
however it ends. One exception: if the conversation is too long, the exchange is replaced by one
with fewer turns, and only the second one is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from falcon.asgi import Request, Response

from bus.models.tasks import ClientProfile
from gateway.access import cooldown_of
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
from gateway.requests.dispatcher import Exchange
from gateway.requests.inbox import EntryInbox
from gateway.requests.shortened import shortened
from gateway.service import HttpService
from gateway.tracing import TRACEPARENT, parent_of

CLOSED_REQUEST = 499
ATTEMPT = "shoal.attempt"
"""Scope key: the `Attempt`, present if this request tries one candidate model of a task."""
LET_IN = "shoal.let_in"
"""Scope key: true once the limits of the client have been checked for this request."""


def asked_over(
    service: HttpService, kind: Kind, dialect: WholeDialect, req: Request, resp: Response
) -> AskedOver:
    """Return the details of a request that are known before its body is read."""
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
    service: HttpService, req: Request, details: AskedOver, extras: Extras
) -> ClientProfile:
    """Set the client and its cooldown in `details`, because a parsed body can name the client.
    Return the client's profile."""
    clients = service.clients
    details.client = clients.named(sharer_of(req, service.options, extras.client_id))
    profile = clients.profile(details.client)
    if _is_bounded(details):
        details.cooldown_s = cooldown_of(extras, profile)
    return profile


def let_in(service: HttpService, req: Request, details: AskedOver) -> None:
    """Raise HttpFaultRaised (429) if the client is in its cooldown or has too many waiting
    requests. A request is checked only once, even if it tries several candidates of a task."""
    if _is_bounded(details) and not req.scope.get(LET_IN):
        service.clients.check(details.client)
        req.scope[LET_IN] = True


def _is_bounded(details: AskedOver) -> bool:
    """Return whether the limits of clients apply to a request. They do not apply to a job, which
    was checked at submission. They do not apply to a request that only examines a prompt, because
    it generates nothing."""
    return details.run is None and details.kind != "ask"


async def hung_up(receive: Receive) -> None:
    """Wait until the client disconnects. Call this function only after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientHangUp:
    """Waits for the client to disconnect, once its body was read, and then calls `abandon(inbox)`.

    One watcher serves the whole request, because only one task can call a connection's `receive`.
    If the exchange is replaced, `watch` replaces the inbox.
    """

    def __init__(self, receive: Receive, abandon: Callable[[EntryInbox], None]) -> None:
        self._receive = receive
        self._abandon = abandon
        self._inbox: EntryInbox | None = None
        self._task = asyncio.ensure_future(self._watch())

    def watch(self, inbox: EntryInbox) -> None:
        """Abandon this inbox, instead of the previous one, when the client disconnects."""
        self._inbox = inbox

    def leave(self, inbox: EntryInbox) -> None:
        """Stop watching, unless `watch` gets another inbox before the next iteration of the event
        loop."""
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
    """A running exchange, and the data that is recorded at its end."""

    service: HttpService
    asked: AskedOver
    parsed: Parsed
    exchange: Exchange
    hang_up: ClientHangUp
    owner: str
    over: bool = False
    settle: Callable[[], None] | None = None
    """A function that charges the used tokens to the API key; None before `begin`."""

    @property
    def keeps(self) -> bool:
        """Return whether the answer will be stored."""
        return self.parsed.to_keep is not None and self.parsed.to_keep.keep

    @property
    def writes(self) -> bool:
        """Return whether the answer or new items of a conversation must be stored before the client
        reads the end of the answer."""
        to_keep = self.parsed.to_keep
        return to_keep is not None and (to_keep.keep or to_keep.turn is not None)

    @property
    def outcome(self) -> str:
        """Return how the exchange ended: `FINISHED` or an error code."""
        inbox = self.exchange.inbox
        if inbox.abandoned:
            return "client_closed"
        if inbox.fault is not None:
            return inbox.fault.code
        reasons = (request.failed for request in self.exchange.requests)
        return next((reason for reason in reasons if reason is not None), FINISHED)

    def raise_early(self) -> None:
        """Raise HttpFaultRaised if the exchange failed before its first token."""
        inbox = self.exchange.inbox
        if inbox.abandoned:
            fault = HttpFault(CLOSED_REQUEST, "client_closed", "the client went away")
            raise HttpFaultRaised(fault)
        if inbox.early_fault is not None:
            raise HttpFaultRaised(inbox.early_fault)

    async def in_time(self) -> None:
        """If this request tries a candidate of a task, wait for the first token, at most for the
        candidate's time budget. Otherwise return immediately.

        Raises HttpFaultRaised if no token comes in time, so that the next candidate is tried.
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
        """If `fault` says that the conversation is too long, and the client allows shorter ones,
        end this exchange and return the body with fewer turns. Otherwise return None."""
        shorter = None if fault is None else shortened(self.parsed, fault)
        if shorter is not None:
            self.give_way()
        return shorter

    def stay_warm(self) -> None:
        """Request the keep-alive time that the body sets for the model."""
        extras = self.parsed.extras
        self.service.keep_alive(self.exchange.model, extras.wish_s, self.asked.client)

    def tell_unheeded(self, resp: Response) -> None:
        """Add the request fields that the model ignores to the answer's header. Fields that the
        runner has not reported yet are missing."""
        names = self.exchange.inbox.take_unheeded()
        tell_ignored(self.service, resp, self.asked.dialect, names)

    def begin(self) -> None:
        """Count the exchange as running, and start its client's cooldown."""
        self.service.running += 1
        self.service.clients.rests(self.asked.client, self.asked.cooldown_s)
        self.settle = self.service.api_keys.spends(self.asked.key, self._spent)
        if self.asked.run is not None:
            self.asked.run.computed = self.exchange.requests
        if self.keeps:
            self.service.answers.begin(self.owner, self.parsed.requests[0].request_id)

    async def keep(self, answer: bytes | None) -> str:
        """Store the answer and the new items of its conversation, if the request asks for that.

        The answer is stored before the client reads its end, because the client may immediately
        send a request that continues from this answer. Return the reason if storing failed, else
        "".
        """
        to_keep = self.parsed.to_keep
        if to_keep is None or answer is None or not self.writes:
            return ""
        stored = KeptAnswer(answer, to_keep.items, to_keep.listed, to_keep.labels)
        # a job's answer has the job's name, whichever run made it
        run = self.parsed.requests[0].request_id
        turn = to_keep.turn
        items = None if turn is None else turn.said(answer)
        if turn is None or items is None:
            if not to_keep.keep:
                return ""
            return await self.service.answers.keep(self.owner, job_of_run(run), stored)
        return await self.service.conversations.end(
            EndedTurn(
                owner=self.owner,
                conversation=request_id_of(turn.conversation),
                run=run,
                answer=job_of_run(run),
                items=(*turn.items, *items),
                kept=stored if to_keep.keep else None,
            )
        )

    async def keep_streamed(self, renderer: StreamRenderer) -> bytes:
        """Store the answer of a stream, as `keep` does. Return an SSE comment with the reason if
        that fails, else b""."""
        why = await self.keep(cast(KeepingStream, renderer).answer) if self.writes else ""
        return sse.comment(f"not kept: {why}") if why else b""

    def end(self, outcome: str = FINISHED, status: int = 200) -> None:
        """Record the exchange, once, and cancel its open requests."""
        if not self.over:
            self.give_way()
            self.service.ended_requests.tell(
                self.exchange, self.asked, outcome=outcome, status=status
            )

    def give_way(self) -> None:
        """End the exchange without recording it, because another exchange replaces it. Cancel its
        open requests."""
        self.over = True
        self.service.running -= 1
        if self.settle is not None:
            self.settle()
        if self.keeps:
            self.service.answers.end(self.parsed.requests[0].request_id)
        self.hang_up.leave(self.exchange.inbox)
        self.service.dispatcher.abandon(self.exchange.inbox)

    def _spent(self) -> int:
        """Return how many tokens the requests of this exchange have used so far. A request that
        only examines a prompt uses none."""
        return sum(request.spent_tokens for request in self.exchange.requests)

    @contextmanager
    def recorded_if_it_fails(self) -> Generator[None]:
        """Record the exchange if the code in this context raises, which means that no stream has
        begun."""
        try:
            yield
        except HttpFaultRaised as error:
            self.end(error.fault.code, error.fault.status)
            raise
        except BaseException:
            self.end("internal_error", 500)
            raise


@contextmanager
def refusals_recorded(service: HttpService, details: AskedOver) -> Generator[None]:
    """Record the request if the code in this context raises, which means that no exchange has
    begun."""
    try:
        yield
    except Exception as error:
        service.ended_requests.tell_refused(details, of_error(error) or internal(details.answer_id))
        raise


async def comments_before(inbox: EntryInbox) -> AsyncGenerator[bytes]:
    """Yield progress as SSE comments until every request is accepted or the exchange fails. Then
    yield a comment with the ignored fields that came too late for the header."""
    if not inbox.settled:
        yield sse.KEEP_ALIVE
    while not inbox.settled:
        await inbox.wait_settled(1.0)
        for text in inbox.take_comments():
            yield sse.comment(text)
    if unheeded := inbox.take_unheeded():
        yield sse.comment(f"ignored: {', '.join(unheeded)}")
