"""The worker's side of a search: one answer for each question, whatever its process does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, Queue
from typing import Any

import pytest

from bus.wire.messages.gateways import AskSearch, SearchFound, SearchRefused
from bus.wire.messages.wire import Message
from worker.pulling.searching import Searches, searches

QUESTION = AskSearch(words="qwen3")
SAYS = "import sys; sys.stdin.readline(); print({!r})"


class Desk:
    """What is answered to whom."""

    def __init__(self, *, offline: bool = False) -> None:
        self.answers: Queue[tuple[bytes, Message]] = Queue()
        self.made = Searches(lambda who, said: self.answers.put((who, said)), offline=offline)

    def next(self) -> tuple[bytes, Message]:
        """Return the next answer, as a worker that ticks gives it."""
        for _ in range(600):
            self.made.tick()
            with suppress(Empty):
                return self.answers.get(timeout=0.1)
        raise AssertionError("no answer")


@pytest.fixture
def made() -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(**more: Any) -> Desk:
        desks.append(Desk(**more))
        return desks[-1]

    yield make
    for desk in desks:
        desk.made.close()


def says(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(searches, "COMMAND", (sys.executable, "-c", code))


def test_what_the_process_found_is_answered_to_who_asked(
    made: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SearchFound(hub="https://hub", left_out=3)
    says(monkeypatch, SAYS.format(found.model_dump_json()))
    desk = made()
    desk.made.ask(QUESTION, b"me")
    assert desk.next() == (b"me", found)
    refused = SearchRefused(reason="offline", message="m")
    says(monkeypatch, SAYS.format(refused.model_dump_json()))
    desk.made.ask(QUESTION, b"you")
    assert desk.next() == (b"you", refused)


@pytest.mark.parametrize(
    ("code", "reason"),
    [("raise SystemExit(3)", "broken"), (SAYS.format("nonsense"), "broken"),
     ("import time; time.sleep(600)", "unreachable")],
)  # fmt: skip
def test_a_process_that_dies_or_takes_too_long_is_an_answer_too(
    made: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    monkeypatch.setattr(searches, "WHOLE_S", 3.0)
    says(monkeypatch, code)
    desk = made()
    desk.made.ask(QUESTION, b"me")
    _, said = desk.next()
    assert isinstance(said, SearchRefused) and said.reason == reason


def test_a_node_that_is_offline_asks_nothing_and_one_that_is_busy_says_so(
    made: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = made(offline=True)
    desk.made.ask(QUESTION, b"me")
    _, said = desk.next()
    assert isinstance(said, SearchRefused) and said.reason == "offline"
    says(monkeypatch, "import time; time.sleep(600)")
    busy = made()
    for _ in range(searches.MOST_WAITING + 1):
        busy.made.ask(QUESTION, b"me")
    _, said = busy.next()
    assert isinstance(said, SearchRefused) and said.reason == "busy"
