"""Talks to a program of `engines.toml`, and to gateways: answers requests for its model.

Runs in the main thread. A request with several choices is one request to the program. Requests
start by priority, then in order of arrival, as far as the program's capacity allows: a program's
own queue has no limit, and no priorities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bus.models.tasks import CommandEngine
from bus.translation import (
    BrokenStream,
    Filtered,
    Hearing,
    NotCarried,
    Target,
    ToldInPassing,
    TranslatedBody,
    events_in,
    hearing_of,
    translated,
)
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    ImagePart,
    InputsPrompt,
    Sampling,
    TextPart,
    Usage,
)
from bus.wire.messages.tokens import (
    ChoiceEnd,
    Displaced,
    Entry,
    TokenDelta,
    ToolCallDelta,
)
from runner.command.calls import EngineClient, EngineStream, Line, LostStream, News, is_end
from runner.serving import OpenRequest, RequestServer, too_many
from runner.text import CallPiece, Piece, TextPiece


def target_of(name: str, engine: CommandEngine) -> Target:
    """Return the target that describes this program to the translation of requests."""
    is_openai = engine.dialect == "openai"
    return Target(
        model=engine.model or name,
        kind=engine.dialect,
        name=f"the engine {name}",
        takes=frozenset(engine.fields) if is_openai else frozenset(),
        completes=is_openai,
    )


def warm_up_of(name: str, engine: CommandEngine) -> tuple[str, dict[str, object], Hearing]:
    """Return a short request for a program: its path, its body, and the translator of its
    answer."""
    target = target_of(name, engine)
    turn = ChatMessage(role="user", parts=(TextPart(text="Hello"),))
    request = GenerationRequest(
        request_id=RequestId("warm-up"),
        model=ModelId(name),
        prompt=ChatPrompt(messages=(turn,)),
        max_tokens=1,
        sampling=Sampling(temperature=0.0),
    )
    body = translated(target, request)
    return body.path, body.fields, hearing_of(target, request.request_id)


@dataclass(slots=True)
class _Answer:
    """One request at the program, or waiting for it. `begun_at` is when the program got it,
    `first_at` when the first part of its answer came; None: not yet."""

    request: OpenRequest
    body: TranslatedBody
    hearing: Hearing
    counts: ToldInPassing = field(default_factory=lambda: ToldInPassing(is_stream=True))
    stream: EngineStream | None = None
    tokens: int = 0
    begun_at: float | None = None
    first_at: float | None = None


class CommandResponder:
    """The `Responder` of a program. `client` and `engine` are set when it is ready. `post` runs a
    callback in the main thread; `heard` is called with the time of each part of an answer."""

    def __init__(
        self,
        server: RequestServer,
        now: Callable[[], float],
        *,
        post: Callable[[Callable[[], None]], None],
        heard: Callable[[float], None],
    ) -> None:
        self.client: EngineClient | None = None
        self.engine: CommandEngine | None = None
        self._server = server
        self._now = now
        self._post = post
        self._heard = heard
        self._answers: dict[RequestId, _Answer] = {}
        self._waiting: list[_Answer] = []
        self._parts = 0

    @property
    def running(self) -> frozenset[RequestId]:
        """Return the requests that the program computes."""
        return frozenset(name for name, each in self._answers.items() if each.stream is not None)

    def step(self, now: float) -> int:
        """Return a number that grows with each call while the program computes. So no gateway gives
        the runner up. A silent stream is ended by its reader instead (`CommandEngine.stall_s`)."""
        self._parts += 1 if self.running else 0
        return self._parts

    def refusal(self, request: OpenRequest, now: float) -> Refusal | None:
        spec, wanted = self._server.spec, request.request
        engine = self.engine
        assert engine is not None, "the program is not ready"
        lacking = _lacking(wanted) or _undeclared(wanted, engine)
        if lacking is not None:
            field_name, why = lacking
            message = f"{spec.model} is a program of engines.toml: {why}"
            return Refusal(reason="unsupported", message=message, field=field_name)
        if request.submit.so_far is not None:
            message = f"{spec.model} cannot continue the answer of another runner"
            return Refusal(reason="not_ready", message=message)
        return too_many(request, self._server.open.values(), engine.capacity + spec.max_waiting)

    def begin(self, request: OpenRequest, now: float) -> None:
        """Translate a request, and send it to the program or queue it."""
        engine = self.engine
        assert engine is not None, "the program is not ready"
        target = target_of(self._server.spec.model, engine)
        wanted = request.request
        if wanted.max_tokens is None:
            limit = {"max_tokens": self._server.spec.default_max_tokens}
            wanted = wanted.model_copy(update=limit)
        try:
            body = translated(target, wanted)
        except NotCarried as error:
            refusal = Refusal(reason="unsupported", message=str(error), field=error.field)
            request.refuse(refusal, now)
            return
        request.size = 0
        hearing = hearing_of(target, request.request_id, request.request.n)
        answer = _Answer(request, body, hearing)
        self._answers[request.request_id] = answer
        position = len(self._waiting)
        self._waiting.append(answer)
        self._waiting.sort(key=lambda each: (each.request.request.priority, each.request.since_at))
        request.accept(now, position=position, unheeded=body.unheeded)
        self._advance(now)

    def pause(self, request: OpenRequest, choice: int) -> None:
        """Do nothing: the rest of the answer waits in memory."""

    def resume(self, request: OpenRequest, choice: int) -> None:
        """Do nothing: the program was not stopped."""

    def give_back(self, request: OpenRequest, now: float, *, begun: bool) -> Displaced | None:
        """Return the message that hands back a request which was not sent to the program yet; None
        for other requests."""
        answer = self._answers.get(request.request_id)
        if answer is not None and answer.begun_at is not None:
            return None
        self._forget(request.request_id)
        return Displaced(request.request_id)

    def end(self, request: OpenRequest, now: float) -> Usage:
        """Stop a request, and return its usage as far as the program has sent it."""
        answer = self._forget(request.request_id)
        if answer is None:
            return Usage()
        if self._server.phase != "ended":
            self._advance(now)
        return _usage(answer, now)

    # --- the program -----------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Send the first waiting requests, as long as the program has room."""
        client, engine = self.client, self.engine
        assert client is not None and engine is not None, "the program is not ready"
        while self._waiting and len(self.running) < engine.capacity:
            answer = self._waiting.pop(0)
            self._start(client, answer, now)

    def _start(self, client: EngineClient, answer: _Answer, now: float) -> None:
        """Send a request to the program."""
        answer.begun_at = now
        self._heard(now)
        self._server.totals.requests += 1
        self._server.note("prefill", answer.request.request_id, done=0, total=0)
        take, body = partial(self._took, answer), answer.body
        answer.stream = client.stream(
            body.path, body.fields, lambda news: self._post(partial(take, news))
        )

    def _took(self, answer: _Answer, news: News) -> None:
        """Process a part of an answer. Parts of requests that have ended are ignored."""
        request, now = answer.request, self._now()
        if request.request_id not in self._answers or request.is_over:
            return
        self._heard(now)
        name = self._server.spec.model
        try:
            match news:
                case Line(data):
                    self._take(answer, data, now)
                case LostStream(why, status):
                    self._fail(request, why, status, now)
                case _ if answer.counts.whole:
                    self._finish(answer, now)
                case _:
                    self._fail(request, f"the engine {name} ended its answer early", 0, now)
        except BrokenStream as error:
            self._fail(request, str(error), 0, now)
        except Filtered as error:
            request.fail("bad_request", str(error), now)
        except Exception as error:
            self._server.failed(request, error, "the engine's output could not be read", now)
        self._server.flush()

    def _take(self, answer: _Answer, data: bytes, now: float) -> None:
        lines = answer.counts.passed(data)
        for event in events_in(lines, f"the engine {self._server.spec.model}"):
            self._put(answer, answer.hearing.take(event), now)
        if answer.counts.whole and is_end(data):
            self._finish(answer, now)

    def _put(self, answer: _Answer, entries: Sequence[Entry], now: float) -> None:
        """Send the parts of an answer to the client."""
        request = answer.request
        if entries and answer.first_at is None:
            answer.first_at = now
            self._server.note("decode_stream", request.request_id)
        for entry in entries:
            match entry:
                case ChoiceEnd():
                    request.end_choice(entry.choice, entry.finish_reason, now, stop=entry.stop)
                case TokenDelta():
                    piece = TextPiece(entry.channel, entry.text, entry.tokens, entry.logprobs)
                    self._send(answer, entry.choice, piece, now)
                case ToolCallDelta():
                    words = entry.call_id, entry.name, entry.arguments
                    self._send(
                        answer, entry.choice, CallPiece(entry.call, *words, entry.tokens), now
                    )
                case _:
                    continue

    def _send(self, answer: _Answer, choice: int, piece: Piece, now: float) -> None:
        answer.tokens += 1
        self._server.totals.generated_tokens += 1
        answer.request.put(choice, (piece,), now)

    def _finish(self, answer: _Answer, now: float) -> None:
        self._put(answer, answer.hearing.end(answer.counts.usage), now)
        answer.request.finish(now)

    def _fail(self, request: OpenRequest, why: str, status: int, now: float) -> None:
        """End a request that the program refused, or whose stream broke."""
        reason = "bad_request" if 400 <= status < 500 and status != 429 else "runner_lost"
        self._server.note("error", request.request_id, reason=reason)
        request.fail(reason, why, now)

    def _forget(self, request_id: RequestId) -> _Answer | None:
        """Stop a request, and forget it."""
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            if answer.stream is not None:
                answer.stream.close()
            self._waiting = [each for each in self._waiting if each is not answer]
        return answer


def _lacking(request: GenerationRequest) -> tuple[str, str] | None:
    """Return a field of the request that shoal cannot send to any program, and why; None if there
    is no such field."""
    if request.question is not None:
        return "prompt", "shoal cannot ask the program how it reads a prompt or counts its tokens"
    if isinstance(request.prompt, InputsPrompt):
        return "input", "the program generates text, not embeddings"
    if request.adapter is not None:
        return "model", "shoal cannot apply adapters to a program"
    if request.prompt_logprobs is not None:
        return "prompt_logprobs", "the program does not return log-probabilities of prompts"
    if request.history:
        return "history", "the program does not continue the tokens of an earlier answer"
    return None


def _undeclared(request: GenerationRequest, engine: CommandEngine) -> tuple[str, str] | None:
    """Return a field that needs an ability of the program which `engines.toml` does not state, and
    the remedy; None if there is no such field. The program might ignore such a field without an
    error."""
    output, prompt = request.output, request.prompt
    if output.kind != "text" and output.kind not in engine.formats:
        remedy = f'if it enforces this format, add formats = ["{output.kind}"] to its table'
        return output.field, remedy
    if not isinstance(prompt, ChatPrompt):
        return None
    if prompt.tools and not engine.calls_tools:
        return "tools", "if its model can call tools, add calls_tools = true to its table"
    parts = (part for turn in prompt.messages for part in turn.parts)
    if not engine.sees and any(isinstance(part, ImagePart) for part in parts):
        return "messages", "if its model can read images, add sees = true to its table"
    return None


def _usage(answer: _Answer, now: float) -> Usage:
    """Return the token counts that the program sent, or else the number of received parts, with the
    times that this runner measured."""
    begun_at, first_at = answer.begun_at, answer.first_at
    usage = answer.counts.usage
    times = {
        "completion_tokens": usage.completion_tokens or answer.tokens,
        "queue_s": max(0.0, (now if begun_at is None else begun_at) - answer.request.received_at),
        "prefill_s": 0.0 if begun_at is None or first_at is None else first_at - begun_at,
        "decode_s": 0.0 if first_at is None else now - first_at,
    }
    return usage.model_copy(update=times)
