"""Talks to the text thread, which turns requests into tokens, so that the main and engine threads
do not have to.

Templates, tokenising and grammar compilation may be slow, so no other thread waits for them. The
text thread posts each result to the main thread. Waiting requests share the thread fairly by the
size of their text. So a short prompt does not wait behind earlier long ones, and no long one waits
forever (Demers, Keshav and Shenker 1989). The main thread detokenises the engine's output, because
a third thread in the path of every token would cost more than that.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from queue import PriorityQueue
from typing import Any, Generic, Protocol, TypeVar

from bus.process.clock import now
from bus.process.logs import story_of
from bus.wire.errors import Refusal
from bus.wire.messages.requests import ChatPrompt, GenerationRequest, InputsPrompt, TextPrompt
from runner.text.prepared import PreparedRequest, ReadPrompt
from runner.text.rendering import RendererNotReady

RETRY_S = 2.0
Answer = PreparedRequest | ReadPrompt | Refusal
Prepared = TypeVar("Prepared")
AnyPrepared = TypeVar("AnyPrepared", covariant=True)


class Preparer(Protocol[AnyPrepared]):
    """The work of the text thread; `TextWorks` implements it. No request makes it raise an
    error."""

    def prepare(self, request: GenerationRequest, context_tokens: int) -> AnyPrepared | Refusal:
        """Return the tokenised request, or the reason for which it is refused."""
        ...

    def read(self, request: GenerationRequest, context_tokens: int) -> AnyPrepared | Refusal:
        """Return the answer to the request's question about its prompt, or the refusal."""
        ...


@dataclass(order=True, slots=True)
class _Job:
    """A request to prepare; None ends the thread. The smallest `turn` is next: the instant when it
    would be done if all waiting requests were prepared in parallel at the same pace. `size` is the
    size of the request's text."""

    turn: float
    number: int
    size: int = field(compare=False, default=0)
    request: GenerationRequest | None = field(compare=False, default=None)
    answered: Callable[[Any], None] = field(compare=False, default=lambda _answer: None)


class TextThread(Generic[Prepared]):
    """The text thread. `load` is called in it; `post` runs a callback in the main thread. `loaded`
    is called in the main thread with the error of `load`, or None. `busy_since` is when the current
    request was started; None if there is none. This thread writes it, so others read it once into a
    local name."""

    def __init__(
        self,
        load: Callable[[], Preparer[Prepared]],
        post: Callable[[Callable[[], None]], None],
        loaded: Callable[[Exception | None], None],
    ) -> None:
        self._load = load
        self._post = post
        self._loaded = loaded
        self._jobs = PriorityQueue[_Job]()
        self._numbers = itertools.count()
        self._turn = 0.0
        self._thread = threading.Thread(target=self._run, name="text", daemon=True)
        self.context_tokens = 0
        self.busy_since: float | None = None

    def start(self, context_tokens: int) -> None:
        """Make the thread load the tokenizer. Later prompts must fit into `context_tokens`."""
        self.context_tokens = context_tokens
        self._thread.start()

    def prepare(
        self, request: GenerationRequest, answered: Callable[[Prepared | Refusal], None]
    ) -> None:
        """Prepare the request, or answer its question about the prompt; `answered` is called once,
        in the main thread."""
        size = text_size(request)
        self._jobs.put(_Job(self._turn + size, next(self._numbers), size, request, answered))

    def stop(self) -> None:
        """End the thread after the requests that are already waiting; it accepts no more."""
        self._jobs.put(_Job(float("inf"), next(self._numbers)))

    def _run(self) -> None:
        try:
            works = self._load()
        except Exception as error:
            traceback.print_exc()
            failure = error
            self._post(lambda: self._loaded(failure))
            return
        self._post(lambda: self._loaded(None))
        while (job := self._jobs.get()).request is not None:
            self._turn += job.size / (self._jobs.qsize() + 1)
            self.busy_since = now()
            self._answer(works, job.request, job.answered)
            self.busy_since = None

    def _answer(
        self,
        works: Preparer[Prepared],
        request: GenerationRequest,
        answered: Callable[[Prepared | Refusal], None],
    ) -> None:
        question = request.question
        computes = question is None or question.wants == "kv"
        work = works.prepare if computes else works.read
        try:
            answer = work(request, self.context_tokens)
        except RendererNotReady as error:
            answer = Refusal(reason="queue_full", message=str(error), retry_after_s=RETRY_S)
        except Exception as error:
            # One request fails alone, whatever it contained.
            sys.stderr.write(f"could not prepare a request:\n{story_of(error)}\n")
            message = f"could not prepare the request: {type(error).__name__}"
            answer = Refusal(reason="bad_request", message=message)
        self._post(partial(answered, answer))


def text_size(request: GenerationRequest) -> int:
    """Return the size of a request's text, in characters (or in token ids, if it has those)."""
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt):
        parts = (part for message in prompt.messages for part in message.parts)
        before = len(request.history or ())
        return before + sum(len(part.text) for part in parts if part.kind == "text")
    if isinstance(prompt, InputsPrompt):
        return sum(map(len, prompt.inputs))
    return len(prompt.text) if isinstance(prompt, TextPrompt) else len(prompt.token_ids)


def import_libraries() -> None:
    """Import in advance the libraries of tokenizers and grammars. MLX is not imported, because the
    thread that owns MLX must import it first. Import errors are ignored; the code that needs the
    library raises them again."""
    for name in ("tokenizers", "llguidance"):
        with contextlib.suppress(ImportError):
            import_module(name)
