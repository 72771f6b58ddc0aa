"""The parts of an HTTP process for the stages of a request, with runners that answer as scripted.

Dialects, parsing, tasks, inboxes and the budget of bodies are the real ones. Every wait lets the
event loop turn, so that a test can cancel a request at each of them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from bus.models.tasks import ClientName, ClientProfile, TaskTable
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import GenerationRequest, Usage
from bus.wire.messages.tokens import ChoiceEnd, Entry, Failed, Finished, TokenDelta
from gateway.dialects.dialect import KeptAnswer, ParseContext, Parsed
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.openai.responses import OpenAIResponses
from gateway.exchange import Asked, ClientWatch, Flow
from gateway.requests.body_budget import BodyBudget
from gateway.requests.dispatcher import Exchange
from gateway.requests.inbox import EntryInbox

ADDRESS = ClientName("address", "1.2.3.4")
COLD, WARM = "cold-model", "warm-model"


class Reply:
    """The head of an answer."""

    def __init__(self) -> None:
        self.data: Any = None
        self.headers: dict[str, str] = {}

    def set_header(self, name: str, value: str) -> None:
        self.headers[name] = value

    def append_header(self, name: str, value: str) -> None:
        self.headers[name] = ", ".join(filter(None, (self.headers.get(name), value)))

    def delete_header(self, name: str) -> None:
        self.headers.pop(name, None)


class ScriptedHttp:
    """A client that sends one body, and never disconnects by itself."""

    def __init__(self, parts: ScriptedParts, fields: Mapping[str, Any]) -> None:
        self.path = "/v1/responses"
        self.reply = Reply()
        self.watch = ClientWatch(self._receive)
        self.pieces: AsyncGenerator[bytes] | None = None
        self.jobs: list[Parsed] = []
        self._at_end: Callable[[], None] | None = None
        self._parts = parts
        self._body = json.dumps(fields).encode()

    async def _receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def body(self) -> bytes:
        await turn()
        self._parts.bodies.take(len(self._body))
        return self._body

    async def owner(self) -> str:
        await turn()
        return "owner"

    def headers(self) -> Mapping[str, str]:
        return {}

    def stream(
        self, pieces: AsyncGenerator[bytes], content_type: str, at_end: Callable[[], None]
    ) -> None:
        self.pieces, self._at_end = pieces, at_end

    async def close(self) -> None:
        """End the answer as the HTTP server does."""
        if self.pieces is not None:
            await self.pieces.aclose()
        if self._at_end is not None:
            self._at_end()

    async def run_in_background(self, parsed: Parsed) -> None:
        await turn()
        self.jobs.append(parsed)


async def turn() -> None:
    """Let the event loop turn a few times."""
    for _ in range(3):
        await asyncio.sleep(0)


@dataclass
class Script:
    """What happens: how many candidates fail, and how often the conversation is too long."""

    failing: int = 0
    too_long: int = 0
    resting: bool = False
    models_known: bool = True


class ScriptedParts:
    """The parts; `recorded` has a line for each recorded request."""

    def __init__(
        self,
        script: Script,
        *,
        profile: ClientProfile | None = None,
        tasks: TaskTable | None = None,
    ) -> None:
        self.script = script
        self.recorded: list[tuple[str, str, int]] = []
        self.spent: list[str] = []
        self.warm: list[float | None] = []
        self.announced: set[str] = set()
        self.stored: list[bytes] = []
        self.rested: list[float] = []
        self.running = 0
        self.provided: Any = None
        self.bodies = BodyBudget(1 << 20)
        self.counters: Any = None
        self._ids = (RequestId(f"r-{number}") for number in itertools.count(1))
        self._feeding: list[asyncio.Task[None]] = []
        self.options: Any = SimpleNamespace(body_depth=64, load_timeout_s=1.0)
        self.reactor: Any = SimpleNamespace(now=lambda: asyncio.get_running_loop().time())
        quiet: Callable[..., None] = lambda *_, **__: None  # noqa: E731
        self.log: Any = SimpleNamespace(info=quiet, error=quiet)
        bus = SimpleNamespace(state=SimpleNamespace(cloud_fallback=True))
        clients = {} if profile is None else {ADDRESS.name: profile}
        self.clients: Any = SimpleNamespace(
            book=SimpleNamespace(table=SimpleNamespace(clients=clients)),
            cooldowns=SimpleNamespace(is_empty=not script.resting),
            named=lambda sharer: ClientName("client_id", sharer[1]) if sharer[1] else ADDRESS,
            profile=lambda _client: profile or ClientProfile(),
            check=self._check,
            rests=lambda _client, cooldown_s: self.rested.append(cooldown_s),
        )
        api_keys = SimpleNamespace(
            spends=lambda key, spent: lambda: self.spent.append(f"{key}: {spent()}")
        )
        self.tasks: Any = SimpleNamespace(table=tasks or TaskTable())
        catalog = SimpleNamespace(
            known=script.models_known,
            wait_known=turn,
            may_think=lambda _name: False,
            named=ModelId,
            ready=lambda _model: [],
        )
        self.dispatcher: Any = SimpleNamespace(
            start=self._start, abandon=lambda inbox: inbox.abandon(), draining=False
        )
        self.tracing: Any = SimpleNamespace(
            choose=lambda *, asked, parent: "asked" if asked else ""
        )
        answers = SimpleNamespace(
            begin=lambda _owner, request: self.announced.add(request),
            end=self.announced.discard,
            keep=self._keep,
            find=self._find,
        )
        self.cluster: Any = SimpleNamespace(bus=bus, catalog=catalog, api_keys=api_keys)
        self.records: Any = SimpleNamespace(answers=answers, conversations=None, jobs=None)
        self.ended_requests: Any = SimpleNamespace(
            tell=lambda _exchange, flow, outcome, status: self._record("answer", outcome, status),
            tell_refused=lambda flow, fault: self._record("refusal", fault.code, fault.status),
        )

    def parse_context(self) -> ParseContext:
        return ParseContext(ids=self._ids, now_s=1.0)

    def ignored(self, dialect: str, fields: Sequence[str]) -> None:
        pass

    def keep_alive(self, model: ModelId, seconds: float | None, client: ClientName) -> None:
        self.warm.append(seconds)

    async def close(self) -> None:
        """Stop the runners."""
        for task in self._feeding:
            task.cancel()
        await asyncio.gather(*self._feeding, return_exceptions=True)

    def _record(self, kind: str, outcome: str, status: int) -> None:
        self.recorded.append((kind, outcome, status))

    def _check(self, _client: ClientName) -> None:
        if self.script.resting:
            raise HttpFaultRaised(HttpFault(429, "client_cooldown", "wait"))

    async def _keep(self, _owner: str, _job: str, stored: KeptAnswer) -> str:
        await turn()
        self.stored.append(stored.answer)
        return ""

    async def _find(self, _owner: str, _request: RequestId) -> KeptAnswer:
        await turn()
        earlier = {"id": "msg_r-0_0", "type": "message", "role": "user", "content": "hi"}
        answer = {"id": "resp_r-0", "output": [], "status": "completed"}
        return KeptAnswer(json.dumps(answer).encode(), (json.dumps(earlier).encode(),))

    def _start(self, parsed: Parsed, **_: Any) -> Exchange:
        requests = tuple(parsed.requests)
        inbox = EntryInbox(requests, on_sent=lambda *_: None)
        facts: Any = tuple(
            SimpleNamespace(prompt_tokens=5, spent_tokens=6, failed=None) for _ in requests
        )
        fault: HttpFault | None = None
        entries: list[Entry] = []
        for request in requests:
            entries += self._entries_of(request)
        if self.script.failing > 0:
            self.script.failing -= 1
            fault = HttpFault(503, "runner_lost", "the runner is gone")
        self._feeding.append(asyncio.ensure_future(self._feed(inbox, entries, fault)))
        return Exchange(inbox, facts, ModelId(parsed.model))

    def _entries_of(self, request: GenerationRequest) -> list[Entry]:
        name = request.request_id
        if self.script.too_long > 0:
            self.script.too_long -= 1
            details = {"prompt_tokens": 200, "limit_tokens": 100}
            return [Failed(name, 0, "context_length", "too long", Usage(), details)]
        words = [TokenDelta(name, seq, 0, "text", f"w{seq} ", 1) for seq in range(3)]
        usage = Usage(prompt_tokens=5, completion_tokens=3)
        return [*words, ChoiceEnd(name, 3, 0, "stop", None), Finished(name, 4, usage)]

    async def _feed(
        self, inbox: EntryInbox, entries: Sequence[Entry], fault: HttpFault | None
    ) -> None:
        await turn()
        if fault is not None:
            inbox.refuse(fault)
            return
        inbox.accepted(inbox.requests[0].request_id)
        for entry in entries:
            await turn()
            inbox.arrived(entry.request_id, [entry])


@dataclass
class Request:
    """A request, by what it uses."""

    fields: dict[str, Any]
    key: str | None = None
    may_name: bool = False
    may_be_traced: bool = False
    script: Script = field(default_factory=Script)
    profile: ClientProfile | None = None
    tasks: TaskTable | None = None

    def begun(self) -> tuple[ScriptedParts, ScriptedHttp, Flow]:
        """Return the parts, the client, and the request as it arrives."""
        parts = ScriptedParts(self.script, profile=self.profile, tasks=self.tasks)
        http = ScriptedHttp(parts, self.fields)
        head = Asked(
            kind="generate",
            dialect=OpenAIResponses(),
            answer_id="http-1",
            came_at=0.0,
            key=self.key,
            sharer=(self.key or "", "", ADDRESS.name, "1"),
            client=ADDRESS,
            may_name=self.may_name,
            may_be_traced=self.may_be_traced,
        )
        return parts, http, Flow(head, http)
