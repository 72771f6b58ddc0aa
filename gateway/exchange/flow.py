"""Talks to the process only through the objects in its fields: the facts about a request that one
stage hands to the next.

`Asked` says who sent the request and to which route. It may be replaced once, because the body can
name the client. `Flow` grows from stage to stage. Both are frozen. `Running` is a submitted
exchange, which ends exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bus.models.tasks import ClientName, ClientProfile, ProviderModel, SpillOver
from bus.wire.shares import Sharer
from gateway.dialects.dialect import Parsed, WholeDialect
from gateway.dialects.faults import HttpFault
from gateway.exchange.headers import Reply
from gateway.exchange.streams import LastingStream
from gateway.records import JobRun, Kind
from gateway.requests.dispatcher import Exchange
from gateway.requests.tasks import Attempt, CandidateOrder
from gateway.tracing import TraceChoice, TraceParent, TracePlace, place_of

FINISHED = "finished"
UNPARSED = Parsed(
    requests=(), model="", stream=False, answer_id="", created_at_s=0.0, fingerprint=""
)
"""Used as `Flow.parsed` until the body is parsed."""


Receive = Callable[[], Awaitable[dict[str, Any]]]


async def hung_up(receive: Receive) -> None:
    """Wait until the client disconnects. Call this function only after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientWatch:
    """Watches a client's connection, from the first call of `on_gone`. The body must have been read
    by then. `is_gone`: the client has disconnected.

    Only one asyncio task can call a connection's `receive`. So one watch serves the whole request
    with all its candidates, and each candidate replaces the function that is called.
    """

    def __init__(self, receive: Receive) -> None:
        self.is_gone = False
        self._receive = receive
        self._act: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    def on_gone(self, act: Callable[[], None]) -> None:
        """Call `act` when the client disconnects, or now if it already has. `act` replaces the
        function of an earlier call of this method."""
        self._act = act
        if self.is_gone:
            act()
        elif self._task is None:
            self._task = asyncio.ensure_future(self._watch())

    def leave(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        await hung_up(self._receive)
        self.is_gone = True
        if self._act is not None:
            self._act()


class HttpSide(Protocol):
    """The HTTP server's side of a request: what the stages read from it and send through it.
    `watch` watches the client's connection."""

    watch: ClientWatch

    @property
    def path(self) -> str:
        """Return the path of the request."""
        ...

    @property
    def reply(self) -> Reply:
        """Return the head and the body of the answer."""
        ...

    async def body(self) -> bytes:
        """Return the whole body. Its bytes stay counted in the budget for request bodies until the
        caller returns them. Raises HttpFaultRaised."""
        ...

    async def owner(self) -> str:
        """Return the owner id of the stored answers that the client may read."""
        ...

    def headers(self) -> Mapping[str, str]:
        """Return the headers of the request; names are in lower case."""
        ...

    def stream(
        self, pieces: AsyncGenerator[bytes], content_type: str, at_end: Callable[[], None]
    ) -> None:
        """Answer with these pieces, as a stream. Call `at_end` when the answer is over, also if no
        piece is ever read because the client has disconnected."""
        ...

    async def run_in_background(self, parsed: Parsed) -> None:
        """Submit the body as a job. Answer with the unfinished answer, or with its events if the
        client wants a stream. Raises HttpFaultRaised."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A request before its body is parsed: its caller and its route.

    - `answer_id`: the id of the answer until the body is parsed.
    - `came_at`: when the first byte arrived, by the monotonic clock.
    - `key`: the id of the API key. `sharer`: the client for fair sharing. `client`: its name.
    - `run`: the run of a job; None for a client's own request.
    - `parent`: the client's span, if the client traces.
    - `may_be_traced`: a trace is possible though the body does not ask for one.
    - `may_name`: the body may name a task or a provider's model, or may leave its model out.
    """

    kind: Kind
    dialect: WholeDialect
    answer_id: str
    came_at: float
    key: str | None
    sharer: Sharer
    client: ClientName
    run: JobRun | None = None
    parent: TraceParent | None = None
    may_be_traced: bool = False
    may_name: bool = False


@dataclass(slots=True)
class Running:
    """A submitted exchange. `tell` records it, with an error code or `FINISHED` and a status;
    `on_end` has functions that release its resources. If the body was forwarded to a provider,
    `exchange` is None, and `relay` returns the answer."""

    exchange: Exchange | None
    tell: Callable[[str, int], None]
    on_end: list[Callable[[], None]]
    relay: Callable[[Flow], Awaitable[Flow]] | None = None
    is_over: bool = False

    def end(self, outcome: str = FINISHED, status: int = 200) -> None:
        """Release the resources of the exchange and record it. Only the first call has an
        effect."""
        if not self.is_over:
            self.give_way()
            self.tell(outcome, status)

    def give_way(self) -> None:
        """Release the resources of the exchange without recording it, because another one replaces
        it."""
        self.is_over = True
        for act in self.on_end:
            act()


@dataclass(frozen=True, slots=True)
class TaskTry:
    """The candidate that is tried now, for a body that names a task or a provider's model.

    - `name`: the model's name in this cluster.
    - `forwards`: the provider speaks the client's dialect and gets the client's body
      (`forwarding`).
    - `attempt`: the limits of the candidate; None if the body names a provider's model itself.
    - `timeout_s`: the remaining part of the client's timeout, if earlier candidates used some of
      it.
    - `is_spilled`: the request waited too long for a model of the cluster, and spilled over.
    """

    name: str
    forwards: bool = False
    attempt: Attempt | None = None
    timeout_s: float | None = None
    is_spilled: bool = False


@dataclass(frozen=True, slots=True)
class Flow:
    """All facts about a request that the stages have so far.

    - `body`: the bytes of the body, until it is parsed. `read_at`: when it was complete.
    - `order`: the candidates that may answer, if the body names a task (`task`) or a provider's
      model. `fields`: the fields of that body. `trial`: the candidate that is tried now;
      `provided`: the provider's model, if that is the candidate.
    - `of_task`: the body, parsed once for all candidates of a task.
    - `spill`: the provider that takes the request if it waits too long; None if there is none.
      `spilled`: why the request goes there; empty if it does not. `since_at`: since when the
      request has waited, if it spilled over and returned to the queue.
    - `parsed`: the parsed body, with all changes by the stages; before that, `UNPARSED`.
    - `profile`: the client's profile; None if it has none.
    - `is_limited`: the client's cooldown and limits must be checked. `is_admitted`: the check has
      passed.
    - `lasting`: the stream, if its client may read it again after a disconnection.
    - `cooldown_s`: the client's cooldown after this request.
    - `traced`: why the request is traced; empty if it is not.
    - `owner`: the owner id of a stored answer.
    - `fault`: why the request failed, if it can be tried again with a shorter conversation.
    - `answer`: the bytes of the whole answer. `not_kept`: why it could not be stored.
    - `outcome`: how a stream ended, as in `Running.end`.
    - `is_streamed`: the answer is a stream and has begun.
    - `is_over`: no further stage runs.
    """

    head: Asked
    http: HttpSide
    body: bytes = b""
    read_at: float | None = None
    task: str = ""
    order: CandidateOrder | None = None
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trial: TaskTry | None = None
    provided: ProviderModel | None = None
    of_task: Parsed | None = None
    spill: SpillOver | None = None
    spilled: str = ""
    since_at: float | None = None
    parsed: Parsed = UNPARSED
    profile: ClientProfile | None = None
    lasting: LastingStream | None = None
    is_limited: bool = False
    is_admitted: bool = False
    cooldown_s: float = 0.0
    traced: TraceChoice = ""
    owner: str = ""
    running: Running | None = None
    fault: HttpFault | None = None
    answer: bytes | None = None
    not_kept: str = ""
    outcome: str = FINISHED
    is_streamed: bool = False
    is_over: bool = False

    @property
    def exchange(self) -> Exchange:
        """Return the submitted exchange."""
        assert self.running is not None and self.running.exchange is not None
        return self.running.exchange

    def place(self, request: str) -> TracePlace:
        """Return the trace and span ids of one of the requests to runners that the body consists
        of."""
        requests = self.parsed.requests
        return place_of(request, requests[0].request_id if requests else request, self.head.parent)


class Attempts(Protocol):
    """Tries candidates one after the other. `flow` has the facts after the latest attempt."""

    flow: Flow

    async def attempt(self, flow: Flow) -> None:
        """Let one candidate answer. Raises what the stages raise."""
        ...
