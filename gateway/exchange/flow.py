"""Talks to the process only through its values: the facts about a request between two stages.

`Asked` says who asks, and grows once: the body may name the client. `Flow` grows from stage to
stage. Both are frozen. `Running` is a submitted exchange, which ends exactly once.
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
"""Stands for the parsed body until there is one."""


Receive = Callable[[], Awaitable[dict[str, Any]]]


async def hung_up(receive: Receive) -> None:
    """Wait until the client disconnects. Call this function only after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientWatch:
    """Watches a client's connection from the first call of `on_gone` on. The body must have been
    read by then. `is_gone`: the client has disconnected.

    Only one asyncio task can call a connection's `receive`. So one watch serves the whole request,
    with all its candidates, and each of them replaces what is to be done.
    """

    def __init__(self, receive: Receive) -> None:
        self.is_gone = False
        self._receive = receive
        self._act: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    def on_gone(self, act: Callable[[], None]) -> None:
        """Call `act`, and no earlier one, when the client disconnects; now if it already has."""
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
    """A request as the HTTP server has it. `watch` watches its client."""

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
        """Return the whole body; its bytes stay reserved in the budget of bodies. Raises
        HttpFaultRaised."""
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
        """Submit the body as a job, and answer with the unfinished answer or its events. Raises
        HttpFaultRaised."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A request before its body: the caller and the route.

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
    `on_end` releases what it holds. `relay` answers in place of the stages, if the body was
    forwarded; `exchange` is None then."""

    exchange: Exchange | None
    tell: Callable[[str, int], None]
    on_end: list[Callable[[], None]]
    relay: Callable[[Flow], Awaitable[Flow]] | None = None
    is_over: bool = False

    def end(self, outcome: str = FINISHED, status: int = 200) -> None:
        """Release what the exchange holds, and record it, once."""
        if not self.is_over:
            self.give_way()
            self.tell(outcome, status)

    def give_way(self) -> None:
        """End the exchange without a record, because another one replaces it."""
        self.is_over = True
        for act in self.on_end:
            act()


@dataclass(frozen=True, slots=True)
class TaskTry:
    """A candidate that is asked, if the body names a task or a provider's model.

    - `name`: the model's name in this cluster.
    - `forwards`: the provider speaks the client's dialect and gets the body as it came.
    - `attempt`: the limits of the candidate; None if the body names a provider's model itself.
    - `timeout_s`: the rest of the client's timeout, if earlier candidates used some of it.
    - `is_spilled`: the request waited too long for a model of the cluster, and spilled over.
    """

    name: str
    forwards: bool = False
    attempt: Attempt | None = None
    timeout_s: float | None = None
    is_spilled: bool = False


@dataclass(frozen=True, slots=True)
class Flow:
    """A request on its way through the stages.

    - `body`: its bytes, until it is parsed. `read_at`: when it was complete.
    - `order`: the candidates that may answer, if the body names a task (`task`) or a provider's
      model. `fields`: the fields of that body. `trial`: the candidate that is asked now;
      `provided`: if it is a provider's model.
    - `of_task`: that body, parsed once for all candidates.
    - `spill`: the provider that takes the request if it waits too long; None if there is none.
      `spilled`: why the request goes there; empty if it does not. `since_at`: since when a request
      has waited that spilled over and was returned.
    - `parsed`: the body as it is answered; `UNPARSED` until it is parsed.
    - `profile`: the client's; None if it has none.
    - `is_limited`: the client may be in its cooldown or at a limit. `is_admitted`: it is not.
    - `lasting`: set if the client may read the stream again.
    - `cooldown_s`: the client's cooldown after this request.
    - `traced`: why it is traced; empty if it is not.
    - `owner`: the owner id of a stored answer.
    - `fault`: why the model did not begin, if a shorter conversation may mend that.
    - `answer`: the whole answer, which may be stored. `not_kept`: why it could not be stored.
    - `outcome`: how a stream ended, as in `Running.end`.
    - `is_streamed`: the answer is a stream, which has begun.
    - `is_over`: nothing is left to do for the stages.
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
        """Return the trace and span ids for one of the runner requests of this request."""
        requests = self.parsed.requests
        return place_of(request, requests[0].request_id if requests else request, self.head.parent)


class Attempts(Protocol):
    """Asks one candidate after the other. `flow` has the facts after the latest attempt."""

    flow: Flow

    async def attempt(self, flow: Flow) -> None:
        """Let one candidate answer. Raises what the stages raise."""
        ...
