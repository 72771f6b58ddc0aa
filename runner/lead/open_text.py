"""The text of one open request: turns the tokens of its rows into the pieces (parts of an answer)
that clients get for each choice.

Pure: time arrives as `now`. The request (`runner.serving`) numbers and sends the pieces. The caller
passes the events of the rows in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from bus.wire.data_frames import pack_ids
from bus.wire.errors import FinishReason, Refusal
from bus.wire.ids import TokenId
from bus.wire.messages.requests import Usage, sum_drafters
from bus.wire.messages.tokens import (
    AnswerSoFar,
    Begun,
    ChoiceSoFar,
    Displaced,
    PromptAnswer,
    Suspended,
)
from bus.wire.proposals import sum_proposals
from runner.engine import EngineFacts, PromptScores, RowId, SampledToken
from runner.lead.trace import RequestTrace
from runner.schedule import RowCost, RowEvent, RowFinished
from runner.serving import OpenRequest
from runner.text import (
    CallPiece,
    ChoiceOutput,
    ChoiceReader,
    Piece,
    PreparedRequest,
    PromptReader,
    TextPiece,
)

Parsed = Literal["thinking", "tool_call"]
"""Parts of a model's output other than plain text."""
NO_ROW = RowId(0)
"""The row id that stands for the row of another runner, whose tokens this runner continues."""


@dataclass(slots=True)
class TextChoice:
    """The text of one choice. `made` are its tokens, `logprobs` their log-probabilities if
    requested (as in `ChoiceSoFar`). `cost` is set when the choice's row has ended."""

    seed: int
    reader: ChoiceReader
    made: list[TokenId] = field(default_factory=list[TokenId])
    logprobs: list[tuple[float, tuple[tuple[TokenId, float], ...]]] = field(
        default_factory=list[tuple[float, tuple[tuple[TokenId, float], ...]]]
    )
    reasoning_tokens: int = 0
    cost: RowCost | None = None


class OpenText:
    """The text of a request. `seeds` has one seed per choice. `prompt` reads the prompt's scores if
    requested; `trace` records spans if requested. `so_far` is the output of another runner, after
    which the text continues. Raises ValueError if this runner's readers cannot reproduce that
    output. `complete` are the choices whose text is complete in that output. `is_for_other`: the
    request only computes a prompt for another node. `newly_parsed` are the parts found since the
    caller last cleared it."""

    def __init__(
        self,
        request: OpenRequest,
        prepared: PreparedRequest,
        readers: Sequence[ChoiceReader],
        *,
        seeds: Sequence[int],
        prompt: PromptReader | None = None,
        trace: RequestTrace | None = None,
        so_far: AnswerSoFar | None = None,
    ) -> None:
        self.request = request
        self.prepared = prepared
        self.trace = trace
        self.choices = [
            TextChoice(seed, reader) for seed, reader in zip(seeds, readers, strict=True)
        ]
        question = prepared.request.question
        self.is_for_other = question is not None and question.wants == "kv"
        self.has_begun = False
        self.is_first = so_far is None
        self.newly_parsed: list[Parsed] = []
        self.complete: list[int] = []
        self._prompt = prompt
        self._before = Usage() if so_far is None else so_far.usage
        self._cached_tokens = self._before.cached_tokens
        self._parsed: set[Parsed] = set()
        if so_far is not None:
            for choice, before in enumerate(so_far.choices):
                self._go_on(choice, before)

    # --- from the scheduler --------------------------------------------------------------

    def started(self, choice: int, cached_tokens: int) -> None:
        """Record that a choice's row has started with this many prompt tokens from the prefix
        cache. The request's usage has the number of its first choice."""
        self.has_begun = True
        if choice == 0 and self.is_first:
            self._cached_tokens = cached_tokens

    def prefilled(self, choice: int, done: int, total: int) -> None:
        """Report the progress of a long prompt to the client, except for its last step, after which
        the first token comes."""
        if choice == 0 and done < total:
            self.request.read_prompt(done, total)

    def scored(self, choice: int, scores: PromptScores, now: float) -> None:
        """Send scores of prompt tokens to the client. Raises the reader's errors."""
        if self._prompt is not None:
            self.request.put(choice, tuple(self._prompt.read(scores)), now)

    def token(self, choice: int, sampled: SampledToken, now: float) -> bool:
        """Add a token of a choice, and return whether it completes the choice's text. Tokens after
        that are ignored. Raises the reader's errors, because of which the caller fails only this
        request."""
        sending = self.request.choices[choice]
        if sending.finish is not None:
            return False
        output = _read(self.choices[choice], sampled)
        if output.pieces or sending.held:
            self._find(output.pieces)
            self.request.put(choice, output.pieces, now)
        if output.ended:
            self._last_words(choice, "stop", now)
        return output.ended

    def row_finished(self, choice: int, finish: FinishReason, cost: RowCost, now: float) -> None:
        """Record that a choice's row has ended and what it cost; send the choice's remaining
        text."""
        self.choices[choice].cost = cost
        if self.request.choices[choice].finish is None:
            self._last_words(choice, finish, now)
        if self.has_ended:
            self.request.finish(now)

    def stopped(self, ends: Iterable[RowEvent]) -> None:
        """Record the costs of rows that were stopped, and the reasoning tokens of a cancelled
        text."""
        self._take_costs(ends)
        if self.request.cancelled is None:
            return
        for choice, sending in zip(self.choices, self.request.choices, strict=True):
            if sending.finish is None:
                choice.reasoning_tokens = choice.reader.finish("cancelled").reasoning_tokens

    # --- what others may know ------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Return whether all rows have ended."""
        return all(choice.cost is not None for choice in self.choices)

    @property
    def may_move(self) -> bool:
        """Return whether another runner can resume the request exactly. It cannot if prompt scores
        are reported or a choice has ended."""
        return self._prompt is None and all(c.finish is None for c in self.request.choices)

    def begun(self) -> Begun:
        """Return the message with which the gateway can resume the request after this runner's
        death."""
        prompt, limit = pack_ids(self.prepared.tokens), self.prepared.max_tokens
        seeds = tuple(choice.seed for choice in self.choices)
        return Begun(self.request.request_id, prompt, limit, seeds, self._cached_tokens)

    def given_back(self, ends: Iterable[RowEvent]) -> Displaced | Suspended:
        """Return the message that hands the request back to its gateway, with the output so far.
        `ends` are the last events of its rows on this runner."""
        request_id = self.request.request_id
        if not self.has_begun:
            return Displaced(request_id)
        self._take_costs(ends)
        choices = (
            ChoiceSoFar(choice.seed, tuple(choice.made), sending.sent, tuple(choice.logprobs))
            for choice, sending in zip(self.choices, self.request.choices, strict=True)
        )
        tokens, limit = self.prepared.tokens, self.prepared.max_tokens
        return Suspended(request_id, AnswerSoFar(tokens, limit, tuple(choices), self.usage()))

    def history(self) -> PromptAnswer | None:
        """Return all prompt and output tokens if the request asked for them; else None."""
        if self.prepared.request.history is None:
            return None
        return PromptAnswer((*self.prepared.tokens, *self.choices[0].made), "", 0)

    def usage(self) -> Usage:
        """Return the usage of all choices together. Prefill and decode times are those of the
        slowest choice; the waiting time is that of the row that began first. All times include the
        times that other runners spent on the request."""
        before = self._before
        costs = [choice.cost for choice in self.choices if choice.cost is not None]
        usage = Usage(
            prompt_tokens=len(self.prepared.tokens),
            completion_tokens=sum(len(choice.made) for choice in self.choices),
            cached_tokens=self._cached_tokens,
            reasoning_tokens=sum(choice.reasoning_tokens for choice in self.choices),
            queue_s=before.queue_s + min((cost.queue_s for cost in costs), default=0.0),
            prefill_s=before.prefill_s + max((cost.prefill_s for cost in costs), default=0.0),
            decode_s=before.decode_s + max((cost.decode_s for cost in costs), default=0.0),
            drafts=before.drafts,
            drafted_tokens=before.drafted_tokens,
            accepted_tokens=before.accepted_tokens,
            predicted_tokens=before.predicted_tokens,
            accepted_predicted_tokens=before.accepted_predicted_tokens,
            drafters=before.drafters,
            proposals=before.proposals,
        )
        drafted = any(cost.drafts.last is not None for cost in costs)
        return self._with_drafts(usage) if drafted else usage

    # --- inside --------------------------------------------------------------------------

    def _with_drafts(self, usage: Usage) -> Usage:
        """Return the usage with the drafts of all choices added."""
        # a stop string may end a text within the tokens of a draft
        drafts = [
            choice.cost.drafts.without(max(choice.cost.completion_tokens - len(choice.made), 0))
            for choice in self.choices
            if choice.cost is not None
        ]
        drafters = sum_drafters(count.drafters for count in drafts)
        _, predicted, predicted_accepted = drafters.get("prediction", (0, 0, 0))
        more = {
            "drafts": usage.drafts + sum(count.drafts for count in drafts),
            "drafted_tokens": usage.drafted_tokens + sum(count.drafted for count in drafts),
            "accepted_tokens": usage.accepted_tokens + sum(count.accepted for count in drafts),
            "predicted_tokens": usage.predicted_tokens + predicted,
            "accepted_predicted_tokens": usage.accepted_predicted_tokens + predicted_accepted,
            "drafters": sum_drafters((usage.drafters, drafters)),
            "proposals": sum_proposals((usage.proposals, *(count.proposals for count in drafts))),
        }
        return usage.model_copy(update=more)

    def _take_costs(self, ends: Iterable[RowEvent]) -> None:
        for end in ends:
            if isinstance(end, RowFinished):
                self.choices[end.key.choice].cost = end.cost

    def _last_words(self, choice: int, finish: FinishReason, now: float) -> None:
        last = self.choices[choice].reader.finish(finish)
        self._find(last.pieces)
        self.choices[choice].reasoning_tokens = last.reasoning_tokens
        self.request.end_choice(choice, last.finish_reason, now, stop=last.stop, pieces=last.pieces)

    def _find(self, pieces: Sequence[Piece]) -> None:
        """Add `tool_call` or `thinking` to `newly_parsed` when the pieces contain the request's
        first tool call or first thinking."""
        for piece in pieces:
            if isinstance(piece, CallPiece):
                part: Parsed = "tool_call"
            elif isinstance(piece, TextPiece) and piece.channel == "reasoning":
                part = "thinking"
            else:
                continue
            if part not in self._parsed:
                self._parsed.add(part)
                self.newly_parsed.append(part)

    def _go_on(self, choice: int, before: ChoiceSoFar) -> None:
        """Continue a choice that another runner began: read its tokens again, as if this runner had
        sampled them and sent their pieces."""
        logprobs = before.logprobs or [(math.nan, ())] * len(before.tokens)
        sending, is_complete = self.request.choices[choice], False
        for token, (logprob, top) in zip(before.tokens, logprobs, strict=True):
            likeliest = tuple((TokenId(other), number) for other, number in top)
            sampled = SampledToken(NO_ROW, TokenId(token), logprob, likeliest)
            output = _read(self.choices[choice], sampled)
            sending.held.extend(output.pieces)
            is_complete = output.ended or token in self.prepared.stop_token_ids
        if is_complete:
            self.complete.append(choice)
        # A runner that died may have sent the end of a choice, whose last token is made again.
        has_died = self.request.submit.deaths > 0
        if not has_died and (is_complete or before.sent > len(sending.held)):
            raise ValueError(
                "this runner decodes the resumed tokens differently from the runner that "
                "generated them"
            )
        sending.sent = sending.skipped = before.sent


def _read(choice: TextChoice, sampled: SampledToken) -> ChoiceOutput:
    """Read one more token of a choice; return the output that it completes."""
    choice.made.append(sampled.token)
    if not math.isnan(sampled.logprob):
        choice.logprobs.append((sampled.logprob, sampled.top))
    return choice.reader.push(sampled)


def resume_request(
    prepared: PreparedRequest, so_far: AnswerSoFar, facts: EngineFacts
) -> PreparedRequest | Refusal:
    """Return a request that continues another runner's output (`so_far`), limited to the tokens
    that fit this runner's context; or return why it cannot be resumed. It gets the tokens that the
    other runner would have sampled, because sampling depends only on seed and position."""
    count, limit = len(so_far.prompt), facts.context_tokens
    most = min(so_far.max_tokens, limit - count)
    made = max((len(choice.tokens) for choice in so_far.choices), default=0)
    if made >= most:
        return Refusal(
            reason="context_length",
            message=(
                f"{count} prompt tokens and {made} tokens of another runner exceed the context "
                f"of {limit}"
            ),
            facts={"prompt_tokens": count, "limit_tokens": limit},
        )
    if len(so_far.choices) != len(prepared.choices):
        message = f"{len(so_far.choices)} choices were begun, {len(prepared.choices)} are requested"
        return Refusal(reason="bad_request", message=message)
    return replace(prepared, tokens=tuple(map(TokenId, so_far.prompt)), max_tokens=most)
