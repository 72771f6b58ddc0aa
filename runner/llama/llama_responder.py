"""Talks to the text thread and to llama-server: answers requests for a GGUF model.

Runs in the main thread. Each choice is a row of llama-server, with a stream of its own. This module
queues rows itself, because llama-server would queue them without a limit. Rows start by priority,
then in order of arrival, when a row and enough KV cells are free. A row has its slot of
llama-server until it ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Set
from functools import partial
from typing import Generic, TypeVar

from bus.models.gguf import ENGINE, missing_ability
from bus.wire.errors import Refusal
from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Displaced, PromptAnswer
from runner.llama.frames import Frame, LostAnswer, News
from runner.llama.launch import Launch
from runner.llama.open_answer import AnswerRow, OpenAnswer, SentWorks
from runner.llama.slots import SlotDisk
from runner.llama.wire import STALLED_S, LlamaClient, Stream
from runner.serving import OpenRequest, RequestServer, too_many
from runner.text import BadGrammar, DeadEnd, PreparedRequest, ReadPrompt, TextThread

RowId = tuple[RequestId, int]
Row = TypeVar("Row")
GATHER_S = 0.002
"""The longest time that the first event of a step waits for the step's other events."""


class LlamaResponder:
    """The `Responder` of a GGUF model. `works`, `launch`, `client` and `disk` are set when the
    model is loaded. `post` runs a callback in the main thread, `later` after some seconds."""

    def __init__(
        self,
        server: RequestServer,
        now: Callable[[], float],
        *,
        post: Callable[[Callable[[], None]], None],
        later: Callable[[float, Callable[[], None]], object],
        text: TextThread[PreparedRequest | ReadPrompt],
    ) -> None:
        self.works: SentWorks | None = None
        self.launch: Launch | None = None
        self.client: LlamaClient | None = None
        self.disk: SlotDisk | None = None
        self._server = server
        self._now = now
        self._post = post
        self._text = text
        self._answers: dict[RequestId, OpenAnswer] = {}
        self._waiting: list[tuple[OpenAnswer, AnswerRow]] = []
        self._streams: dict[RowId, Stream] = {}
        self._frames = 0
        self._beats = 0
        self._news_at = 0.0
        self._step = StepGatherer[RowId](server.flush, later)

    @property
    def running(self) -> frozenset[RequestId]:
        """Return the requests with a row at llama-server."""
        return frozenset(request_id for request_id, _ in self._streams)

    def resume_rows(self) -> None:
        """Start rows that waited for the disk."""
        if self.works is not None and self._server.phase != "ended":
            self._advance(self._now())
            self._server.flush()

    def stalled_s(self, now: float) -> float:
        """Return for how long no frame has come from llama-server; 0 if no row runs."""
        return now - self._news_at if self._streams else 0.0

    # --- from the server -----------------------------------------------------------------

    def step(self, now: float) -> int:
        """Return a number whose growth shows the gateway that the runner makes progress. It grows
        with each frame. It also grows with each call until llama-server is late, because one batch
        of a prompt may take longer than a gateway waits."""
        if self._streams and self.stalled_s(now) <= STALLED_S:
            self._beats += 1
        return self._frames + self._beats

    def refusal(self, request: OpenRequest, now: float) -> Refusal | None:
        spec = self._server.spec
        if (lacking := missing_ability(request.request)) is not None:
            message = f"{spec.model} is a GGUF model, which does not support {lacking.name}"
            why = lacking.note and f" ({lacking.note})"
            return Refusal(reason="unsupported", message=message + why, field=lacking.field)
        if request.submit.so_far is not None:
            message = f"{ENGINE} cannot continue the answer of another runner"
            return Refusal(reason="not_ready", message=message)
        return too_many(request, self._server.open.values(), spec.max_rows + spec.max_waiting)

    def begin(self, request: OpenRequest, now: float) -> None:
        """Pass the request to the text thread, which tokenises it."""
        asked_for = request.request
        if asked_for.max_tokens is None:
            limit = {"max_tokens": self._server.spec.default_max_tokens}
            asked_for = asked_for.model_copy(update=limit)
        self._text.prepare(asked_for, partial(self._prepared, request))

    def pause(self, request: OpenRequest, choice: int) -> None:
        """Do nothing: the rest of the answer waits in memory."""

    def resume(self, request: OpenRequest, choice: int) -> None:
        """Do nothing: the row was not stopped."""

    def give_back(self, request: OpenRequest, now: float, *, begun: bool) -> Displaced | None:
        """Return the request to its gateway if none of its rows has started; else return None."""
        answer = self._answers.get(request.request_id)
        if answer is not None and answer.has_begun:
            return None
        self._forget(request.request_id)
        return Displaced(request.request_id)

    def end(self, request: OpenRequest, now: float) -> Usage:
        """Stop the rows that still run, and return the usage of all rows together."""
        answer = self._forget(request.request_id)
        if answer is None:
            count = 0 if request.accepted is None else request.accepted.prompt_tokens
            return Usage(prompt_tokens=count)
        if self._server.phase != "ended":
            self._advance(now)
        request.answer = answer.history() or request.answer
        return answer.usage(now)

    # --- from the text thread ------------------------------------------------------------

    def _prepared(
        self, request: OpenRequest, answer: PreparedRequest | ReadPrompt | Refusal
    ) -> None:
        if request.is_over:
            return
        now = self._now()
        request.size = 0
        self._server.note("prompt_build", request.request_id)
        try:
            if isinstance(answer, PreparedRequest):
                self._place(request, answer, now)
            elif isinstance(answer, ReadPrompt):
                prompt = PromptAnswer(answer.tokens, answer.text, answer.context_tokens)
                request.answer_prompt(answer.count, prompt, now)
            else:
                request.refuse(answer, now)
        except Exception as error:
            self._server.failed(request, error, "the request could not be placed", now)
        self._server.flush()

    def _place(self, request: OpenRequest, prepared: PreparedRequest, now: float) -> None:
        """Queue the rows of a request, and start rows that have room."""
        works, launch = self.works, self.launch
        assert works is not None and launch is not None, "llama-server is not ready"
        seeds = [
            secrets.randbits(31) if choice.seed is None else choice.seed
            for choice in prepared.choices
        ]
        try:
            answer = OpenAnswer(request, prepared, works, seeds, launch.facts.vocabulary)
        except BadGrammar as error:
            refused = Refusal(
                reason="bad_request",
                message=f"this format cannot be enforced: {error}",
                field=request.request.output.field,
            )
            request.refuse(refused, now)
            return
        self._answers[request.request_id] = answer
        position = len(self._waiting)
        self._waiting += [(answer, row) for row in answer.rows]
        self._waiting.sort(
            key=lambda each: (each[0].request.request.priority, each[0].request.since_at)
        )
        request.accept(
            now,
            position=position,
            prompt_tokens=len(prepared.tokens),
            unheeded=prepared.unheeded,
        )
        self._advance(now)

    # --- rows ------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Start the first waiting rows, as long as rows and cells are free."""
        launch, client, works, disk = self.launch, self.client, self.works, self.disk
        assert launch is not None and client is not None, "llama-server is not ready"
        assert works is not None and disk is not None, "llama-server is not ready"
        while self._waiting and len(self._streams) < launch.rows:
            answer, row = self._waiting[0]
            cells = sum(self._answers[request_id].cells for request_id, _ in self._streams)
            if cells + answer.cells > launch.cells and self._streams:
                return
            if disk.waits(answer.content):
                return
            del self._waiting[0]
            row.slot = disk.slots.take(answer.content)
            self._start(client, works, answer, row, now)
        if not self._streams and not self._waiting:
            disk.rest()

    def _start(
        self, client: LlamaClient, works: SentWorks, answer: OpenAnswer, row: AnswerRow, now: float
    ) -> None:
        totals, request_id = self._server.totals, answer.request.request_id
        if not answer.has_begun:
            totals.requests += 1
            totals.prompt_tokens += len(answer.prepared.tokens)
        if not self._streams:
            self._news_at = now
        row.begun_at = now
        self._ask(client, works, answer, row, now)
        self._server.note("prefill", request_id, done=0, total=len(answer.prepared.tokens))

    def _ask(
        self, client: LlamaClient, works: SentWorks, answer: OpenAnswer, row: AnswerRow, now: float
    ) -> None:
        """Send the next request of a row."""
        row.asked_at = now
        take = partial(self._took, answer, row)
        self._streams[answer.request.request_id, row.choice] = client.stream(
            answer.body(row, works.markers), lambda news: self._post(partial(take, news))
        )

    def _took(self, answer: OpenAnswer, row: AnswerRow, news: News) -> None:
        """Process a part of a row's answer. Parts of rows that were stopped are ignored."""
        request, now = answer.request, self._now()
        if (request.request_id, row.choice) not in self._streams or request.is_over:
            return
        self._news_at = now
        self._frames += 1
        try:
            if isinstance(news, LostAnswer):
                reason = "bad_request" if news.refused else "runner_lost"
                self._server.note("error", request.request_id, reason=reason)
                request.fail(reason, news.why, now)
            elif news.prompt:
                answer.read(news, row)
            else:
                self._take(answer, row, news, now)
        except DeadEnd as error:
            request.fail("internal", f"grammar: {error}", now)
        except Exception as error:
            self._server.failed(request, error, "the model's output could not be read", now)
        if request.is_over:
            self._server.flush()
        else:
            self._step.add((request.request_id, row.choice), self._streams.keys())

    def _take(self, answer: OpenAnswer, row: AnswerRow, frame: Frame, now: float) -> None:
        request, totals, before = answer.request, self._server.totals, row.tokens
        is_first = row.first_at is None
        is_over = answer.take(frame, row, now)
        if is_first and row.first_at is not None:
            self._server.note("decode_stream", request.request_id)
            assert self.disk is not None and row.begun_at is not None, "this row never began"
            if len(self._streams) == 1:
                computed = len(answer.prepared.tokens) - row.cached
                self.disk.measured(computed, row.first_at - row.begun_at)
        totals.generated_tokens += row.tokens - before
        if not is_over:
            if frame.stop is not None:
                assert self.client is not None and self.works is not None, (
                    "llama-server is not ready"
                )
                self._ask(self.client, self.works, answer, row, now)
            return
        if row.cached:
            totals.prefix_hits += 1
            totals.cached_tokens += row.cached
        self._stop(request.request_id, row)
        if all(each.is_over for each in answer.rows):
            request.finish(now)
        self._advance(now)

    def _stop(self, request_id: RequestId, row: AnswerRow) -> None:
        stream = self._streams.pop((request_id, row.choice), None)
        if stream is not None:
            stream.close()
            assert self.disk is not None, "a row began before the model was loaded"
            self.disk.slots.free(row.slot)

    def _forget(self, request_id: RequestId) -> OpenAnswer | None:
        """Stop all rows of a request, and forget it."""
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            for row in answer.rows:
                self._stop(request_id, row)
            self._waiting = [each for each in self._waiting if each[0] is not answer]
        return answer


class StepGatherer(Generic[Row]):
    """Sends the tokens of one step together. llama-server sends one event for each row of a step.
    A message to the gateways for each event would cost more than the token itself.

    Calls `send` once all rows that took part in the last step have sent an event, or after
    `GATHER_S`. `later` runs a callback after some seconds."""

    def __init__(
        self, send: Callable[[], None], later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._send = send
        self._later = later
        self._came: set[Row] = set()
        self._expected: set[Row] = set()
        self._step = 0
        self._waits = False

    def add(self, row: Row, running: Set[Row]) -> None:
        """Note that a row has sent an event. `running` are the rows that may still send events."""
        self._came.add(row)
        if self._came >= self._expected & running:
            self._end_step()
        elif not self._waits:
            self._waits = True
            self._later(GATHER_S, partial(self._overdue, self._step))

    def _overdue(self, step: int) -> None:
        if step == self._step:
            self._end_step()

    def _end_step(self) -> None:
        self._step += 1
        self._waits, self._expected, self._came = False, self._came, set()
        self._send()
