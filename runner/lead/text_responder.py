"""Talks to the text thread and the engine's loop: answers requests with generated text.

Runs in the main thread. The text thread turns a request into tokens. The scheduler then has a row
for each choice of the request, and this module turns the events of the rows into pieces of text for
the client.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

from bus.service import Shell
from bus.wire.errors import Refusal
from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Displaced, PromptAnswer, Suspended
from runner import schedule
from runner.lead.lead_loop import LeadLoop, Stepped
from runner.lead.open_text import OpenText, resume_request
from runner.lead.prompt_kv import PromptKv
from runner.lead.trace import trace_of
from runner.serving import OpenRequest, RequestServer
from runner.text import Answer, PreparedRequest, ReadPrompt, TextThread, TextWorks


class TextResponder:
    """The `Responder` of a generative model.

    `works` (the loaded tokenizer with all that reads and writes text) is None until it is loaded.
    `ask_ranks` is called with a traced request that
    ended or was handed back, so that its ranks report their spans.
    """

    def __init__(
        self,
        server: RequestServer,
        shell: Shell,
        *,
        loop: LeadLoop,
        text: TextThread[PreparedRequest | ReadPrompt],
    ) -> None:
        self.works: TextWorks | None = None
        self.ask_ranks: Callable[[OpenText], None] = lambda _text: None
        self._server = server
        self._loop = loop
        self._text = text
        self._now = shell.reactor.now
        self._log = shell.log
        self._texts: dict[RequestId, OpenText] = {}
        self._kv = PromptKv(loop, shell.reactor, server.flush)
        self._waits = 0

    # --- from the server -----------------------------------------------------------------

    def step(self, now: float) -> int:
        if self._kv.writing or self._loop.awaits_files():
            self._waits += 1  # waiting for a file has its own deadline
        return self._loop.status.steps_done + self._waits

    def refusal(self, request: OpenRequest, now: float) -> Refusal | None:
        """Return why a request is refused; None if it is accepted. If there is no room, a request
        that has not begun may be handed back to its gateway: one with a lower priority, after
        ageing, than this request."""
        facts, adapter = self._loop.facts, request.request.adapter
        if adapter and facts and (why := facts.why_no_adapter(adapter)):
            message = f"{self._server.spec.model} {why}"
            return Refusal(reason="unsupported", message=message, field="model")
        others = [_arrival(other) for other in self._server.open.values() if not other.accepted]
        with self._loop.scheduling() as scheduler:
            drafter = request.request.speculate
            # an answer that resumes here goes on without its drafter
            if drafter is not None and request.submit.so_far is None:
                undrafted = scheduler.intake.undrafted(drafter)
                if undrafted is not None:
                    return undrafted
            place = scheduler.intake.make_place(_arrival(request), others, now)
        if isinstance(place, Refusal):
            return place
        if place is not None:
            self._server.give_back(place, begun=False)
        return None

    def begin(self, request: OpenRequest, now: float) -> None:
        """Pass the request to the text thread, which tokenises it."""
        asked_for = request.request
        if asked_for.max_tokens is None:
            limit = {"max_tokens": self._server.spec.default_max_tokens}
            asked_for = asked_for.model_copy(update=limit)
        self._text.prepare(asked_for, partial(self._prepared, request))

    def pause(self, request: OpenRequest, choice: int) -> None:
        with self._loop.scheduling() as scheduler:
            scheduler.pause(schedule.RowKey(request.request_id, choice), self._now())

    def resume(self, request: OpenRequest, choice: int) -> None:
        with self._loop.scheduling() as scheduler:
            scheduler.resume(schedule.RowKey(request.request_id, choice))

    def give_back(
        self, request: OpenRequest, now: float, *, begun: bool
    ) -> Displaced | Suspended | None:
        """Stop a request and return the message that hands it back to its gateway; None if the
        request continues here. The output of a request that has begun goes with the message, if
        another runner can resume it."""
        if request.accepted is None:
            return Displaced(request.request_id)
        text = self._texts[request.request_id]
        if text.has_begun and not (begun and text.may_move):
            return None
        with self._loop.scheduling() as scheduler:
            ends = scheduler.cancel(request.request_id, now)
        del self._texts[request.request_id]
        self.ask_ranks(text)
        return text.given_back(ends)

    def end(self, request: OpenRequest, now: float) -> Usage:
        """Cancel the rows that still run, send the trace, and return the usage of all rows
        together."""
        text = self._texts.pop(request.request_id, None)
        if text is None:
            count = 0 if request.accepted is None else request.accepted.prompt_tokens
            return Usage(prompt_tokens=count)
        # the scheduler may be out of reach when the process ends
        if not text.has_ended and self._server.phase != "ended":
            with self._loop.scheduling() as scheduler:
                ends = scheduler.cancel(request.request_id, now)
            text.stopped(ends)
        if text.trace is not None:
            self._server.send(request.peer, text.trace.report(now))
            self.ask_ranks(text)
        computes_kv = text.is_for_other and self._server.phase != "ended"
        tokens = text.prepared.tokens
        request.answer = self._kv.cost(request, tokens) if computes_kv else text.history()
        return text.usage()

    # --- from the text thread ------------------------------------------------------------

    def _prepared(self, request: OpenRequest, answer: Answer) -> None:
        """Process the text thread's result: refuse the request, answer its question about the
        prompt, or submit it to the scheduler."""
        if request.is_over:
            return
        now, facts = self._now(), self._loop.facts
        request.size = 0
        self._server.note("prompt_build", request.request_id)
        try:
            so_far = request.submit.so_far
            if isinstance(answer, PreparedRequest) and so_far is not None:
                assert facts is not None, "the runner is not ready"
                answer = resume_request(answer, so_far, facts)
            if isinstance(answer, PreparedRequest):
                self._place(request, answer, now)
            elif isinstance(answer, ReadPrompt):
                prompt = PromptAnswer(answer.tokens, answer.text, answer.context_tokens)
                question = request.request.question
                if question is not None and question.wants == "cost":
                    prompt = self._kv.cost(request, answer.tokens)
                request.answer_prompt(answer.count, prompt, now)
            else:
                request.refuse(answer, now)
        except Exception as error:
            self._server.failed(request, error, "the request could not be placed", now)
        self._server.flush()

    def _place(self, request: OpenRequest, prepared: PreparedRequest, now: float) -> None:
        """Submit the request to the scheduler; the scheduler may refuse it."""
        works, submit = self.works, request.submit
        assert works is not None, "the runner is not ready"
        so_far = submit.so_far
        seeds = [
            secrets.randbits(63) if prepared_choice.seed is None else prepared_choice.seed
            for prepared_choice in prepared.choices
        ]
        if so_far is not None:
            seeds = [choice.seed for choice in so_far.choices]
        trace = None
        if request.request.trace:
            trace = trace_of(request, prepared, now, self._server.spec.group)
        text = OpenText(
            request,
            prepared,
            [works.choice(prepared, choice.choice) for choice in prepared.choices],
            seeds=seeds,
            prompt=None if prepared.request.prompt_logprobs is None else works.prompt(prepared),
            trace=trace,
            so_far=so_far,
        )
        with self._loop.scheduling() as scheduler:
            placed = scheduler.submit(
                prepared,
                seeds=seeds,
                now=now,
                deadline_at=request.deadline_at,
                sharer=request.sharer,
                waited_s=submit.waited_ms / 1000,
                returns=request.returns,
                made=[tuple(map(TokenId, choice.made)) for choice in text.choices],
                suspect=submit.suspect,
            )
        if isinstance(placed, Refusal):
            request.refuse(placed, now)
            return
        if placed.displaced is not None:
            self._server.give_back(placed.displaced, begun=False)
        self._texts[request.request_id] = text
        request.accept(
            now,
            position=placed.position,
            prompt_tokens=len(prepared.tokens),
            unheeded=prepared.unheeded,
            resumes=text.may_move,
        )
        for choice in text.complete:
            self._complete(text, schedule.RowKey(request.request_id, choice), now)

    # --- from the engine -----------------------------------------------------------------

    def stepped(self, news: Stepped) -> None:
        """Turn the row events of a step into pieces of text, and send the pieces."""
        now = self._now()
        for event in news.events:
            text = self._texts.get(event.key.request_id)
            if text is not None:
                if text.trace is not None:
                    text.trace.took(event, news)
                self._happened(text, event, now)
        self._server.flush()

    def _happened(self, text: OpenText, event: schedule.RowEvent, now: float) -> None:
        request, choice = text.request, event.key.choice
        note, totals = self._server.note, self._server.totals
        ended = isinstance(event, schedule.RowFinished | schedule.RowFailed)
        if ended and event.cost.drafts.last is not None:
            totals.note_drafts(event.cost.drafts.drafters, event.cost.drafts.proposals)
        try:
            match event:
                case schedule.RowToken():
                    if not text.choices[choice].made:
                        note("decode_stream", request.request_id)
                    totals.generated_tokens += request.choices[choice].finish is None
                    if text.token(choice, event.sampled, now):
                        self._complete(text, event.key, now)
                case schedule.RowScored():
                    text.scored(choice, event.scores, now)
                case schedule.RowFinished():
                    if event.why:
                        note("memory_short", request.request_id, why=event.why)
                        self._log.warning("ended a row: not enough memory", why=event.why)
                    finish = partial(text.row_finished, choice, event.finish, event.cost, now)
                    if text.is_for_other:
                        self._kv.write(text.prepared, finish)
                    else:
                        finish()
                case schedule.RowFailed():
                    text.choices[choice].cost = event.cost
                    note("error", request.request_id, reason=event.reason)
                    request.fail(event.reason, event.message, now)
                case schedule.RowStarted():
                    text.started(choice, event.cached_tokens)
                    self._started(text, event)
                case schedule.RowPrefilled():
                    text.prefilled(choice, event.done, event.total)
                    phase = "decode_wait_first_token" if event.done == event.total else "prefill"
                    note(phase, request.request_id, done=event.done, total=event.total)
        except Exception as error:
            message = "the model's output could not be read"
            self._server.failed(request, error, message, now)
        for what in text.newly_parsed:
            note("parser", request.request_id, found=what)
        text.newly_parsed.clear()

    def _complete(self, text: OpenText, key: schedule.RowKey, now: float) -> None:
        """End the row of a choice whose text is complete, for example because of a stop string."""
        with self._loop.scheduling() as scheduler:
            events = scheduler.complete(key, now)
        for event in events:
            self._happened(text, event, now)

    def _started(self, text: OpenText, event: schedule.RowStarted) -> None:
        totals, request = self._server.totals, text.request
        if event.key.choice == 0 and request.accepted is not None and request.accepted.resumes:
            self._server.send(request.peer, text.begun())
        if event.key.choice == 0 and text.is_first:
            totals.requests += 1
            totals.prompt_tokens += len(text.prepared.tokens)
        self._server.note(
            "kv_cache_lookup", event.key.request_id, cached_tokens=event.cached_tokens
        )
        if event.cached_tokens:
            totals.prefix_hits += 1
            totals.cached_tokens += event.cached_tokens


def _arrival(request: OpenRequest) -> schedule.Arrival:
    """Return what the scheduler must know about a request to compare it with others that arrive."""
    return schedule.Arrival(
        request.request_id,
        request.sharer,
        request.request.priority,
        request.since_at,
        request.returns,
    )
