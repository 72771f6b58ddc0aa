"""Read one choice: turn its sampled tokens into text, reasoning and tool calls.

Pure. Text is held back while it may be the beginning of a stop string, a marker or a character. The
text of stop tokens is never sent. The log-probability of a token is sent with the text in which the
token ends; tokens of markup or layout have none.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from bus.wire.errors import FinishReason
from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.tokens import Channel, RawLogprob, TokenLogprob
from runner.engine import SampledToken
from runner.text.detokenise import Detokeniser
from runner.text.families import Call, Reader, Span
from runner.text.prepared import CallPiece, ChoiceFinish, ChoiceOutput, Piece, TextPiece
from runner.text.stops import Automaton

NOTHING = ChoiceOutput()
CUTS = ("length", "memory_pressure")
"""Finish reasons of an answer that was cut off rather than ended by the model."""


@dataclass(frozen=True, slots=True)
class LaterStops:
    """Stop strings that apply only after this many tokens."""

    tokens: int
    stops: Automaton


class ChoiceText:
    """Reads one choice: implements `runner.text.prepared.ChoiceReader`."""

    def __init__(
        self,
        *,
        request_id: RequestId,
        choice: int,
        detokeniser: Detokeniser,
        reader: Reader,
        stop_token_ids: frozenset[int],
        one_call: bool,
        token_text: Callable[[int], str] | None,
        later_stops: LaterStops | None = None,
    ) -> None:
        """`token_text` None: no log-probabilities. `one_call`: the first tool call ends the choice.
        `later_stops`: stop strings that apply only after some tokens."""
        self._request_id = request_id
        self._choice = choice
        self._detokeniser = detokeniser
        self._reader = reader
        self._stop_token_ids = stop_token_ids
        self._one_call = one_call
        self._token_text = token_text
        self._later_stops = later_stops
        self._made = 0
        self._ended = False
        self._calls = 0
        self._reasoning_tokens = 0
        self._pending: list[TokenId] = []  # tokens not yet counted in a piece
        self._length = 0  # characters of raw text so far
        self._waiting: list[SampledToken] = []  # their bytes are half a character
        self._noted: deque[tuple[int, SampledToken]] = deque()  # (end of its raw text, token)

    def push(self, token: SampledToken) -> ChoiceOutput:
        """Add the next token and return the text that this token completes."""
        if self._ended:
            return NOTHING
        self._pending.append(token.token)
        if self._later_stops is not None:
            self._made += 1
            if self._made > self._later_stops.tokens:
                self._reader.look_for(self._later_stops.stops)
                self._later_stops = None
        if token.token in self._stop_token_ids:
            return NOTHING
        text = self._detokeniser.add(token.token)
        if self._token_text is not None:
            self._note(token, text)
        reader = self._reader
        reasoned = reader.reasoning
        pieces: list[Piece] = []
        if text:
            self._length += len(text)
            self._read(reader.feed(text), pieces)
        if reasoned or reader.reasoning:
            self._reasoning_tokens += 1
        if not pieces and not self._ended:
            return NOTHING
        return ChoiceOutput(tuple(pieces), self._ended)

    def finish(self, reason: FinishReason) -> ChoiceFinish:
        """End the choice. Return the text that was still held back, and the finish reason that
        clients see: "stop" becomes "tool_calls" after a tool call."""
        pieces: list[Piece] = []
        reader = self._reader
        if not self._ended:
            text = self._detokeniser.flush()
            self._length += len(text)
            self._read(reader.feed(text), pieces)
        if not self._ended:
            self._read(reader.flush(is_cut=reason in CUTS), pieces)
        self._ended = True
        if reader.stop is not None and reason in CUTS:
            reason = "stop"
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        return ChoiceFinish(tuple(pieces), reason, reader.stop, self._reasoning_tokens)

    def _read(self, spans: list[Span | Call], pieces: list[Piece]) -> None:
        stopped = self._reader.stop is not None
        for span in spans:
            if isinstance(span, Call):
                self._call(span, pieces)
                if self._one_call and not span.goes_on:
                    self._ended = True
                    return
            else:
                last = stopped and span is spans[-1]
                self._say(span.kind, span.text, span.end, pieces, last=last)
        self._ended = stopped

    def _call(self, call: Call, pieces: list[Piece]) -> None:
        """Append the piece of a new tool call, or of further arguments of the current call. Append
        nothing if there are no further arguments."""
        identity = None
        if call.name is not None:
            identity = call_id(self._request_id, self._choice, self._calls)
            self._calls += 1
        elif not call.arguments:
            return
        ids, self._pending = tuple(self._pending), []
        later = tuple((token.logprob, token.top) for token in self._last_noted())
        index, arguments = self._calls - 1, call.arguments
        pieces.append(CallPiece(index, identity, call.name, arguments, len(ids), ids, later))

    def _say(
        self, channel: Channel, text: str, end: int, pieces: list[Piece], *, last: bool
    ) -> None:
        """Append a piece of text that ends at offset `end` of the raw text. `last`: the text ends
        at that offset because a stop string begins."""
        ids, self._pending = tuple(self._pending), []
        logprobs: tuple[TokenLogprob, ...] = ()
        later: tuple[RawLogprob, ...] = ()
        if self._noted:
            logprobs = self._logprobs(end - len(text), end, last=last)
        if self._noted or self._waiting:
            unsent = (*(token for _, token in self._noted), *self._waiting)
            later = tuple((token.logprob, token.top) for token in unsent)
        pieces.append(TextPiece(channel, text, len(ids), logprobs, ids, later))

    def _note(self, token: SampledToken, text: str) -> None:
        """Record at which offset the token's text ends. A token that ends within a character waits
        for the token that completes the character."""
        self._waiting.append(token)
        if self._detokeniser.is_incomplete and not text:
            return
        end = self._length + len(text)
        self._noted.extend((end, waiting) for waiting in self._waiting)
        self._waiting.clear()

    def _last_noted(self) -> list[SampledToken]:
        """Return the last tokens, of which text may follow a call. Tokens before them are markup,
        which has no log-probabilities."""
        noted = self._noted
        last = takewhile(lambda pair: pair[0] == noted[-1][0], reversed(noted))
        return [*reversed([token for _, token in last]), *self._waiting]

    def _logprobs(self, start: int, end: int, *, last: bool) -> tuple[TokenLogprob, ...]:
        """Return the log-probabilities of the tokens whose text ended within (start, end]. If this
        piece is the `last`, include the token that the stop string cut. Tokens that ended before
        `start` were markup and are dropped."""
        noted = self._noted
        logprobs: list[TokenLogprob] = []
        begun = 0
        while noted and (noted[0][0] <= end or (last and begun < end)):
            begun, token = noted.popleft()
            if begun > start:
                assert self._token_text is not None
                logprobs.append(logprob_of(token.token, token.logprob, token.top, self._token_text))
        return tuple(logprobs)


def logprob_of(
    token: TokenId,
    logprob: float,
    top: Sequence[tuple[TokenId, float]],
    token_text: Callable[[int], str],
) -> TokenLogprob:
    """Return the log-probability entry of one token: its text, its log-probability, and those of
    the likeliest tokens."""
    likeliest = tuple((other, token_text(other), number) for other, number in top)
    return TokenLogprob(token, token_text(token), logprob, likeliest)


def call_id(request_id: RequestId, choice: int, call: int) -> str:
    """Return the id of a tool call: a hash of these three values, so that the id is always the
    same."""
    digest = hashlib.sha256(f"{request_id}/{choice}/{call}".encode()).hexdigest()
    return f"call_{digest[:24]}"
