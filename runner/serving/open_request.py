"""The state of one open request: text, credit, entry numbers.

Pure: time arrives as `now`. It turns row events into numbered entries for the gateway and orders to
the scheduler. Promises: entries are numbered without gaps in the order they are sent. A delta is
never sent without credit, and a choice's end never before its deltas. Exactly one terminal comes
last. A choice with unsent text and no credit has its row paused; `stalled_s` says for how long.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bus.wire.errors import FailReason, FinishReason
from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    AnswerSoFar,
    ChoiceEnd,
    ChoiceSoFar,
    Entry,
    Failed,
    Finished,
    PrefillProgress,
    PromptAnswer,
    PromptTokens,
    TokenDelta,
    ToolCallDelta,
)
from runner.engine import PromptScores, RowId, SampledToken
from runner.schedule import RowCost, RowEvent, RowKey, Scheduler
from runner.serving.trace import RequestTrace
from runner.text import (
    CallPiece,
    ChoiceOutput,
    ChoiceReader,
    Piece,
    PreparedRequest,
    PromptPiece,
    PromptReader,
    TextPiece,
)

OrderKind = Literal["pause", "resume", "complete", "cancel"]
Parsed = Literal["thinking", "tool_call"]
"""Parts of a model's output other than plain text."""
NO_ROW = RowId(0)
"""The row id of tokens from another runner."""


@dataclass(frozen=True, slots=True)
class Order:
    """A call of the scheduler. `cancel` is for the whole request."""

    kind: OrderKind
    key: RowKey


@dataclass(slots=True)
class Outgoing:
    """The entries and orders of one turn for one gateway process."""

    entries: list[Entry] = field(default_factory=list[Entry])
    orders: list[Order] = field(default_factory=list[Order])


@dataclass(slots=True)
class OpenChoice:
    """`made` are its tokens and `logprobs` theirs if requested, as in `ChoiceSoFar`. `held` waits
    for credit; `sent` counts sent entries. `finish` is set when its last text is known, `closed`
    when its end was sent, `cost` when its row ended."""

    key: RowKey
    seed: int
    reader: ChoiceReader
    credit: int
    made: list[TokenId] = field(default_factory=list[TokenId])
    logprobs: list[tuple[float, tuple[tuple[TokenId, float], ...]]] = field(
        default_factory=list[tuple[float, tuple[tuple[TokenId, float], ...]]]
    )
    held: deque[Piece] = field(default_factory=deque[Piece])
    sent: int = 0
    reasoning_tokens: int = 0
    finish: FinishReason | None = None
    stop: str | None = None
    closed: bool = False
    paused: bool = False
    stalled_since: float | None = None
    cost: RowCost | None = None


class OpenRequest:
    """One open request, as the module describes. `peer` is the gateway process, `seeds` are those
    of the choices. `prompt` reads the prompt's scores if requested; `trace` records spans if
    requested. `so_far` is the output of another runner, after which entries continue. Raises
    ValueError if this runner's readers cannot reproduce that output."""

    def __init__(
        self,
        prepared: PreparedRequest,
        readers: Sequence[ChoiceReader],
        *,
        seeds: Sequence[int],
        peer: bytes,
        credit: int,
        prompt: PromptReader | None = None,
        trace: RequestTrace | None = None,
        so_far: AnswerSoFar | None = None,
    ) -> None:
        self.prepared = prepared
        self.trace = trace
        self._prompt = prompt
        self.peer = peer
        self.request_id: RequestId = prepared.request_id
        self.choices = [
            OpenChoice(RowKey(prepared.request_id, choice.choice), seed, reader, credit)
            for choice, seed, reader in zip(prepared.choices, seeds, readers, strict=True)
        ]
        self.is_over = False
        self.has_begun = False
        self._before = Usage() if so_far is None else so_far.usage
        self._cached_tokens = self._before.cached_tokens
        self.is_first = so_far is None
        self._parsed: dict[Parsed, bool] = {}
        self._seq = 0
        if so_far is not None:
            for choice, before in zip(self.choices, so_far.choices, strict=True):
                _go_on(choice, before)

    # --- from the scheduler ----------------------------------------------------------

    def started(self, choice: int, cached_tokens: int) -> None:
        """Record the cached prompt tokens; the first choice reports them."""
        self.has_begun = True
        if choice == 0 and self.is_first:
            self._cached_tokens = cached_tokens

    def prefilled(self, choice: int, done: int, total: int, out: Outgoing) -> None:
        """Report the progress of a long prompt; the first token reports the last step."""
        if choice == 0 and done < total and not self.is_over:
            out.entries.append(PrefillProgress(self.request_id, self._next(), done, total))

    def scored(self, choice: int, scores: PromptScores, now: float, out: Outgoing) -> None:
        """Add scores of prompt tokens. Raises the reader's errors."""
        open_choice = self.choices[choice]
        if self.is_over or open_choice.finish is not None or self._prompt is None:
            return
        open_choice.held.extend(self._prompt.read(scores))
        self._send(open_choice, now, out)

    def token(self, choice: int, sampled: SampledToken, now: float, out: Outgoing) -> None:
        """Add a token of a choice; ignored after the choice's text is complete.

        Raises the reader's errors: the caller fails this request alone.
        """
        open_choice = self.choices[choice]
        if self.is_over or open_choice.finish is not None:
            return
        output = _read(open_choice, sampled)
        _find(output.pieces, self._parsed)
        if output.ended:
            self._last_words(open_choice, "stop")
            out.orders.append(Order("complete", open_choice.key))
        if open_choice.held or open_choice.finish is not None:
            self._send(open_choice, now, out)

    def row_finished(
        self, choice: int, finish: FinishReason, cost: RowCost, now: float, out: Outgoing
    ) -> None:
        """End a choice's row: its last text and its cost."""
        open_choice = self.choices[choice]
        if self.is_over:
            return
        open_choice.cost = cost
        if open_choice.finish is None:
            self._last_words(open_choice, finish)
        if finish == "cancelled":
            open_choice.held.clear()
        self._send(open_choice, now, out)

    def fail(
        self, reason: FailReason, message: str, out: Outgoing, cost: RowCost | None = None
    ) -> None:
        """Fail the request if it is open; drop its unsent text."""
        if self.is_over:
            return
        self.is_over = True
        if cost is not None:
            for choice in self.choices:
                choice.cost = choice.cost or cost
        failed = Failed(self.request_id, self._next(), reason, message, self.usage(), {})
        out.entries.append(failed)
        out.orders.append(Order("cancel", self.choices[0].key))

    # --- from the gateway --------------------------------------------------------------

    def grant(self, choice: int, grant: int, now: float, out: Outgoing) -> None:
        """Add credit; an unknown choice or grant is ignored."""
        if self.is_over or not 0 <= choice < len(self.choices) or grant <= 0:
            return
        self.choices[choice].credit += grant
        self._send(self.choices[choice], now, out)

    # --- what others may know -----------------------------------------------------------

    def newly_parsed(self) -> list[Parsed]:
        """Return the parts found since the last call, each once."""
        new: list[Parsed] = [what for what, is_told in self._parsed.items() if not is_told]
        for what in new:
            self._parsed[what] = True
        return new

    def stalled_s(self, now: float) -> float:
        """Return for how many seconds the slowest choice has waited for credit."""
        since = [c.stalled_since for c in self.choices if c.stalled_since is not None]
        return now - min(since) if since else 0.0

    @property
    def is_paused(self) -> bool:
        """Return whether every incomplete choice waits for its client."""
        return all(choice.paused or choice.finish is not None for choice in self.choices)

    @property
    def may_move(self) -> bool:
        """Return whether another runner can resume the request exactly. That is impossible if
        prompt scores are reported, and after a choice has ended."""
        return self._prompt is None and all(choice.finish is None for choice in self.choices)

    def so_far(self, costs: Mapping[int, RowCost]) -> AnswerSoFar:
        """Return the output so far, for another runner; `costs` are those of the choices here."""
        for choice, cost in costs.items():
            self.choices[choice].cost = cost
        choices = (
            ChoiceSoFar(
                open_choice.seed,
                tuple(open_choice.made),
                open_choice.sent,
                tuple(open_choice.logprobs),
            )
            for open_choice in self.choices
        )
        prepared = self.prepared
        return AnswerSoFar(prepared.tokens, prepared.max_tokens, tuple(choices), self.usage())

    def usage(self) -> Usage:
        """Return the sums over all choices. Seconds are of the slowest choice, waits of the first;
        both include other runners."""
        before = self._before
        costs = [choice.cost for choice in self.choices if choice.cost is not None]
        return Usage(
            prompt_tokens=len(self.prepared.tokens),
            completion_tokens=sum(len(choice.made) for choice in self.choices),
            cached_tokens=self._cached_tokens,
            reasoning_tokens=sum(choice.reasoning_tokens for choice in self.choices),
            queue_s=before.queue_s + min((cost.queue_s for cost in costs), default=0.0),
            prefill_s=before.prefill_s + max((cost.prefill_s for cost in costs), default=0.0),
            decode_s=before.decode_s + max((cost.decode_s for cost in costs), default=0.0),
        )

    # --- inside ---------------------------------------------------------------------------

    def _next(self) -> int:
        seq = self._seq
        self._seq += 1
        return seq

    def _last_words(self, choice: OpenChoice, finish: FinishReason) -> None:
        last = choice.reader.finish(finish)
        _find(last.pieces, self._parsed)
        choice.held.extend(last.pieces)
        choice.finish, choice.stop = last.finish_reason, last.stop
        choice.reasoning_tokens = last.reasoning_tokens

    def _send(self, choice: OpenChoice, now: float, out: Outgoing) -> None:
        held = choice.held
        while held and choice.credit > 0:
            choice.credit -= 1
            choice.sent += 1
            out.entries.append(self._entry(choice.key.choice, held.popleft()))
        if not held and choice.finish is not None and not choice.closed:
            choice.closed = True
            end = ChoiceEnd(
                self.request_id, self._next(), choice.key.choice, choice.finish, choice.stop
            )
            out.entries.append(end)
        self._watch_credit(choice, now, out)
        if all(each.closed and each.cost is not None for each in self.choices):
            self.is_over = True
            out.entries.append(
                Finished(self.request_id, self._next(), self.usage(), self._history())
            )

    def _history(self) -> PromptAnswer | None:
        """Return all prompt and output tokens, if requested."""
        if self.prepared.request.history is None:
            return None
        return PromptAnswer((*self.prepared.tokens, *self.choices[0].made), "", 0)

    def _watch_credit(self, choice: OpenChoice, now: float, out: Outgoing) -> None:
        if choice.credit > 0 or choice.closed:
            choice.stalled_since = None
            if choice.paused:
                choice.paused = False
                out.orders.append(Order("resume", choice.key))
        else:
            if choice.stalled_since is None:
                choice.stalled_since = now
            if choice.finish is None and not choice.paused:
                choice.paused = True
                out.orders.append(Order("pause", choice.key))

    def _entry(self, choice: int, piece: Piece) -> Entry:
        if isinstance(piece, TextPiece):
            return TokenDelta(
                self.request_id,
                self._next(),
                choice,
                piece.channel,
                piece.text,
                piece.tokens,
                piece.logprobs,
            )
        if isinstance(piece, PromptPiece):
            return PromptTokens(
                self.request_id, self._next(), choice, piece.start, piece.text, piece.logprobs
            )
        return ToolCallDelta(
            self.request_id,
            self._next(),
            choice,
            piece.call,
            piece.call_id,
            piece.name,
            piece.arguments,
            piece.tokens,
        )


def _find(pieces: Sequence[Piece], parsed: dict[Parsed, bool]) -> None:
    """Record parts other than plain text; mark new ones as unreported."""
    for piece in pieces:
        if isinstance(piece, CallPiece):
            parsed.setdefault("tool_call", False)
        elif isinstance(piece, TextPiece) and piece.channel == "reasoning":
            parsed.setdefault("thinking", False)


def _read(choice: OpenChoice, sampled: SampledToken) -> ChoiceOutput:
    """Read one more token of a choice; return the text that it completes."""
    choice.made.append(sampled.token)
    if not math.isnan(sampled.logprob):
        choice.logprobs.append((sampled.logprob, sampled.top))
    output = choice.reader.push(sampled)
    choice.held.extend(output.pieces)
    return output


def _go_on(choice: OpenChoice, before: ChoiceSoFar) -> None:
    """Read the tokens of another runner again, as if their entries had been sent here."""
    logprobs = before.logprobs or [(math.nan, ())] * len(before.tokens)
    ended = False
    for token, (logprob, top) in zip(before.tokens, logprobs, strict=True):
        likeliest = tuple((TokenId(other), number) for other, number in top)
        ended = _read(choice, SampledToken(NO_ROW, TokenId(token), logprob, likeliest)).ended
    if ended or before.sent > len(choice.held):
        raise ValueError(
            "this runner decodes the resumed tokens differently from the runner that generated them"
        )
    for _ in range(before.sent):
        choice.held.popleft()
    choice.sent = before.sent


def carry_out(order: Order, scheduler: Scheduler, now: float) -> list[RowEvent]:
    """Apply an order to the scheduler; return the resulting events."""
    match order.kind:
        case "pause":
            scheduler.pause(order.key, now)
        case "resume":
            scheduler.resume(order.key)
        case "complete":
            return scheduler.complete(order.key, now)
        case "cancel":
            return scheduler.cancel(order.key.request_id, now)
    return []
