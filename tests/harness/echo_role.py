"""A role without tokens and steps: it repeats the words of a prompt, one piece for each.

A stand-in for an engine that speaks HTTP: its thread sees requests and yields text. Some words do
more: `fail` is an error of the engine with this request, `break` of the engine itself; a prompt
that begins with `raise` makes the responder raise, one with `wait` is accepted with its first word.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue

from bus.wire.errors import Refusal
from bus.wire.ids import RequestId
from bus.wire.messages.requests import TextPrompt, Usage
from bus.wire.messages.tokens import Displaced
from runner.engine import EngineStatus
from runner.roles.role import RoleParts, ServingRole
from runner.serving import OpenRequest, RequestServer, too_many
from runner.text import TextPiece


@dataclass
class Echo:
    """A request; one word of it at most is with the engine."""

    request: OpenRequest
    words: deque[str]
    said: int = 0
    is_paused: bool = False
    is_asked: bool = False


class EchoLoop:
    """Says one word after another; each waits for `let` if that is set."""

    def __init__(self) -> None:
        self.status = EngineStatus()
        self.words = SimpleQueue[tuple[Echo, str] | None]()
        self.let: threading.Semaphore | None = None
        self.role: EchoRole | None = None

    def load(self) -> None: ...

    def run(self) -> None:
        while (job := self.words.get()) is not None:
            echo, word = job
            if self.let is not None:
                self.let.acquire()
            if word == "break":
                raise OSError("the engine is gone")
            self.status.steps_done += 1
            assert self.role is not None
            self.role.post(echo, LookupError(word) if word == "fail" else word)

    def stop(self) -> None:
        self.words.put(None)
        if self.let is not None:
            self.let.release(1000)


@dataclass
class EchoResponder:
    """The `Responder`. `ends` are the requests for which `end` was called."""

    server: RequestServer
    loop: EchoLoop
    ends: list[str] = field(default_factory=list[str])
    open: dict[RequestId, Echo] = field(default_factory=dict[RequestId, Echo])

    def step(self, now: float) -> int:
        return self.loop.status.steps_done

    def refusal(self, request: OpenRequest, now: float) -> Refusal | None:
        if not isinstance(request.request.prompt, TextPrompt):
            return Refusal(reason="unsupported", message="only text can be repeated")
        spec = self.server.spec
        return too_many(request, self.server.open.values(), spec.max_rows + spec.max_waiting)

    def begin(self, request: OpenRequest, now: float) -> None:
        prompt = request.request.prompt
        assert isinstance(prompt, TextPrompt)
        echo = Echo(request, deque(prompt.text.split()))
        self.open[request.request_id] = echo
        if echo.words[0] == "raise":
            raise RuntimeError("a defect of the responder")
        if echo.words[0] == "wait":
            echo.words.popleft()
        else:
            request.accept(now, position=len(self.open) - 1, prompt_tokens=len(echo.words))
        self._ask(echo)

    def pause(self, request: OpenRequest, choice: int) -> None:
        self.open[request.request_id].is_paused = True

    def resume(self, request: OpenRequest, choice: int) -> None:
        echo = self.open[request.request_id]
        echo.is_paused = False
        self._ask(echo)

    def give_back(self, request: OpenRequest, now: float, *, begun: bool) -> Displaced | None:
        if self.open[request.request_id].said:
            return None
        del self.open[request.request_id]
        return Displaced(request.request_id)

    def end(self, request: OpenRequest, now: float) -> Usage:
        self.ends.append(request.request_id)
        echo = self.open.pop(request.request_id)
        return Usage(prompt_tokens=echo.said + len(echo.words), completion_tokens=echo.said)

    def said(self, echo: Echo, word: str | Exception, now: float) -> None:
        """Take a word of the engine, which may come after the end of its request."""
        request, echo.is_asked = echo.request, False
        if isinstance(word, Exception):
            self.server.failed(request, word, "the engine could not say a word", now)
        elif self.open.get(request.request_id) is echo:
            echo.said += 1
            request.accept(now, prompt_tokens=echo.said + len(echo.words))
            request.put(0, (TextPiece("text", f"{word} ", 1),), now)
            if not echo.words:
                request.finish(now)
            self._ask(echo)
        self.server.flush()

    def _ask(self, echo: Echo) -> None:
        if echo.words and not echo.is_paused and not echo.is_asked:
            echo.is_asked = True
            self.loop.words.put((echo, echo.words.popleft()))


class EchoRole(ServingRole):
    """The role; `responder` and `loop` are its parts."""

    def __init__(self, parts: RoleParts) -> None:
        self.loop = EchoLoop()
        super().__init__(parts, self.loop)
        self.loop.role = self
        self.responder = self._server.responder = EchoResponder(self._server, self.loop)

    def post(self, echo: Echo, word: str | Exception) -> None:
        """Pass a word to the main thread; called in the engine's."""
        self._reactor.call(lambda: self.responder.said(echo, word, self._reactor.now()))
