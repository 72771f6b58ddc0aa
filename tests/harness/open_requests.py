"""Open requests of a runner without its server: what was sent, and what the server was told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bus.wire.messages.requests import GenerationRequest, Usage
from bus.wire.messages.tokens import AnswerSoFar, Entry, Submit, ToGateway
from runner.lead.open_text import OpenText
from runner.serving.open_request import OpenRequest
from runner.text import ChoiceReader, PreparedRequest, PromptReader


class StandInHost:
    """A server of one request. `calls` are the choices that were paused and resumed."""

    responder: Any

    def __init__(self, usage: Callable[[OpenRequest], Usage] = lambda _request: Usage()) -> None:
        self.responder = self
        self.sent: list[ToGateway] = []
        self.calls: list[tuple[str, int]] = []
        self.ends = 0
        self.usage = usage

    def send(self, peer: bytes, message: ToGateway) -> None:
        self.sent.append(message)

    def pause(self, request: OpenRequest, choice: int) -> None:
        self.calls.append(("pause", choice))

    def resume(self, request: OpenRequest, choice: int) -> None:
        self.calls.append(("resume", choice))

    def ended(self, request: OpenRequest, now: float) -> Usage:
        self.ends += 1
        return self.usage(request)


def open_request(
    request: GenerationRequest,
    host: StandInHost,
    entries: list[Entry],
    *,
    credit: int = 100,
    sharer: tuple[str, ...] = (),
    waited_ms: int = 0,
    deaths: int | None = None,
) -> OpenRequest:
    """A request that came at 0.0 and is not accepted yet; its entries come into `entries`. With
    `deaths`, it outlives its runners, of which so many have died."""
    resumes = deaths is not None
    submit = Submit(request, 1, credit, 60_000, sharer, waited_ms, None, resumes, deaths or 0)
    return OpenRequest(submit, peer=b"gw", now=0.0, host=host, entries=entries)


class OpenedText:
    """An accepted request of the text role; its usage is that of its rows."""

    def __init__(
        self,
        prepared: PreparedRequest,
        readers: Sequence[ChoiceReader],
        *,
        seeds: Sequence[int],
        credit: int = 100,
        prompt: PromptReader | None = None,
        so_far: AnswerSoFar | None = None,
        deaths: int | None = None,
    ) -> None:
        self.entries: list[Entry] = []
        self.host = StandInHost(self._ended)
        self.request = open_request(
            prepared.request, self.host, self.entries, credit=credit, deaths=deaths
        )
        self.text = OpenText(
            self.request, prepared, readers, seeds=seeds, prompt=prompt, so_far=so_far
        )
        self.request.accept(0.0, resumes=True)

    def _ended(self, request: OpenRequest) -> Usage:
        request.answer = self.text.history()
        return self.text.usage()
