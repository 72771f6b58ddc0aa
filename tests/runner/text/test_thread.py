"""The text thread: who is prepared when."""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from bus.process.logs import Log
from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    InputsPrompt,
    TextPart,
    TextPrompt,
    TokensPrompt,
)
from runner.lifecycle import LOAD_FAILED, WEDGED
from runner.roles.role import RoleHost, leave_without_text
from runner.text import RendererNotReady, TextThread, TextWorks, TokenizerError
from runner.text.thread import RETRY_S, text_size


class SlowWorks:
    """Prepares one request at a time, each when it is let."""

    def __init__(self) -> None:
        self.let = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.done: list[str] = []
        self.contexts: set[int] = set()

    def prepare(self, request: GenerationRequest, context_tokens: int) -> str:
        self.contexts.add(context_tokens)
        self.begun.release()
        assert self.let.acquire(timeout=10)
        self.done.append(request.request_id)
        return request.request_id


def request(name: str, size: int) -> GenerationRequest:
    prompt = TextPrompt(text="x" * size)
    return GenerationRequest(request_id=RequestId(name), model=ModelId("m"), prompt=prompt)


def order_of(first: list[tuple[str, int]], then: list[tuple[str, int]]) -> list[str]:
    """The order in which requests are prepared of which the later ones come during the first."""
    works, posted = SlowWorks(), queue.SimpleQueue[Callable[[], None]]()
    thread = TextThread(lambda: cast(TextWorks, works), posted.put, lambda _works: None)
    thread.start(64)
    answers: list[Any] = []
    for name, size in first:
        thread.prepare(request(name, size), answers.append)
    assert works.begun.acquire(timeout=10)
    for name, size in then:
        thread.prepare(request(name, size), answers.append)
    works.let.release(len(first) + len(then))
    thread.stop()
    for _ in range(1 + len(first) + len(then)):
        posted.get(timeout=10)()
    assert sorted(answers) == sorted(works.done)
    assert works.contexts == {64}, "each has to fit the context that the thread was started with"
    return works.done


def test_equal_ones_are_prepared_in_the_order_in_which_they_came() -> None:
    names = [f"r{n:02}" for n in range(20)]
    assert order_of([(name, 10) for name in names], []) == names


def test_a_short_prompt_does_not_wait_behind_long_ones() -> None:
    done = order_of([(f"long{n}", 1_000_000) for n in range(20)], [("short", 100)])
    assert done.index("short") == 1, "behind the one that was being prepared"


def test_a_long_prompt_does_not_wait_for_ever() -> None:
    works, posted = SlowWorks(), queue.SimpleQueue[Callable[[], None]]()
    thread = TextThread(lambda: cast(TextWorks, works), posted.put, lambda _works: None)
    thread.start(64)
    thread.prepare(request("first", 1), lambda _answer: None)
    assert works.begun.acquire(timeout=10)
    thread.prepare(request("long", 1_000), lambda _answer: None)
    for number in range(60):  # two are always waiting
        thread.prepare(request(f"short{number}", 100), lambda _answer: None)
        works.let.release()
        assert works.begun.acquire(timeout=10)
    works.let.release(10)
    thread.stop()
    for _ in range(63):
        posted.get(timeout=10)
    assert works.done.index("long") < 40


def test_a_helper_that_was_not_ready_is_no_fault_of_the_request_nor_of_the_tokenizer() -> None:
    class Unready:
        def prepare(self, _request: GenerationRequest, _context_tokens: int) -> str:
            raise RendererNotReady("shoal's own process was not ready")

    posted, answers = queue.SimpleQueue[Callable[[], None]](), list[Any]()
    thread = TextThread(lambda: cast(TextWorks, Unready()), posted.put, lambda _error: None)
    thread.start(64)
    thread.prepare(request("a", 1), answers.append)
    for _ in range(2):
        posted.get(timeout=10)()
    thread.stop()
    (refusal,) = answers
    assert (refusal.reason, refusal.retry_after_s) == ("queue_full", RETRY_S)
    left: list[tuple[int, str, str]] = []
    host, said = SimpleNamespace(leave=lambda *words: left.append(words)), io.StringIO()
    log = Log(node="n", process="runner:00", stream=said)
    leave_without_text(cast(RoleHost, host), log, RendererNotReady("it was slow"))
    assert "tokenizer" not in said.getvalue()
    leave_without_text(cast(RoleHost, host), log, TokenizerError("no tokenizer.json"))
    assert [code for code, *_ in left] == [WEDGED, LOAD_FAILED], "the first is tried again"


def test_the_size_of_a_text_is_that_of_all_its_inputs() -> None:
    def size_of(prompt: Any) -> int:
        whole = GenerationRequest(request_id=RequestId("r"), model=ModelId("m"), prompt=prompt)
        return text_size(whole)

    assert size_of(InputsPrompt(inputs=("ab", (1, 2, 3)))) == 5
    assert size_of(TokensPrompt(token_ids=(TokenId(1), TokenId(2)))) == 2
    message = ChatMessage(role="user", parts=(TextPart(text="abc"), TextPart(text="d")))
    assert size_of(ChatPrompt(messages=(message,))) == 4
