"""The answer to one open request: its rows at llama-server, and the text of each.

Pure: time arrives as `now`. A row is one choice. The caller passes the frames of a row in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from bus.models.kv import kept_apart
from bus.wire.errors import FinishReason
from bus.wire.ids import TokenId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import PromptAnswer
from runner.engine import SampledToken
from runner.llama.frames import Frame
from runner.llama.launch import BATCH_TOKENS
from runner.llama.slices import MOST_SEED, NO_ROW, Slices, TokenMatcher, needs_slices
from runner.llama.slots import NO_SLOT, SlotContent, TakenSlot
from runner.serving import OpenRequest
from runner.text import ChoiceReader, PreparedRequest, SentText, TextWorks

UNSENT = TokenId(-1)
"""The id of a token of which only the text is known."""
SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""The samplers in the order in which shoal's own engine applies them."""


class SentWorks(TextWorks, Protocol):
    """The text work for an engine that makes the text of its tokens itself (`runner.text.Text`)."""

    @property
    def markers(self) -> frozenset[str]:
        """Return the marks, such as `<think>`, that the reader of a choice must see in the text."""
        ...

    def sent_choice(self, prepared: PreparedRequest, choice: int) -> tuple[ChoiceReader, SentText]:
        """Return a new reader of one choice, and the place for the text of its next token."""
        ...

    def matcher(self, prepared: PreparedRequest) -> TokenMatcher | None:
        """Return a new matcher of the request's grammar; None if it has none. Raises BadGrammar."""
        ...


@dataclass(slots=True)
class AnswerRow:
    """One choice. `sent` has the text of llama-server's newest token; a row in `slices` gets token
    ids instead. `begun_at`: when the row's first request was sent to llama-server. `asked_at`: when
    its last request was sent. `first_at`: when the first token arrived. `is_over`: the row has
    ended. `slot`: the slot of llama-server that computes it."""

    choice: int
    reader: ChoiceReader
    seed: int
    sent: SentText = field(default_factory=SentText)
    slices: Slices | None = None
    slot: TakenSlot = NO_SLOT
    is_continued: bool = False
    asked_at: float = 0.0
    tokens: int = 0
    cached: int = 0
    reasoning_tokens: int = 0
    begun_at: float | None = None
    first_at: float | None = None
    ended_at: float | None = None

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None


class OpenAnswer:
    """The answer to `request`. `content` is its prompt as the content of a slot. `seeds` has one
    seed per choice. `vocabulary` is the number of llama-server's tokens. Raises BadGrammar."""

    def __init__(
        self,
        request: OpenRequest,
        prepared: PreparedRequest,
        works: SentWorks,
        seeds: list[int],
        vocabulary: int,
    ) -> None:
        self.request = request
        self.prepared = prepared
        self.content = SlotContent(prepared.tokens, kept_apart(prepared.request))
        self._vocabulary = vocabulary
        self.rows: list[AnswerRow] = []
        for choice, seed in zip(prepared.choices, seeds, strict=True):
            number = choice.choice
            if needs_slices(prepared):
                thinking = None if prepared.limit is None else prepared.limit.count()
                matcher = works.matcher(prepared)
                slices = Slices(prepared, seed, vocabulary, matcher, thinking)
                reader = works.choice(prepared, number)
                self.rows.append(AnswerRow(number, reader, seed, slices=slices))
            else:
                reader, sent = works.sent_choice(prepared, number)
                self.rows.append(AnswerRow(number, reader, seed, sent))

    @property
    def cells(self) -> int:
        """Return the tokens of KV cache that one row reserves."""
        return len(self.prepared.tokens) + self.prepared.max_tokens

    @property
    def has_begun(self) -> bool:
        return any(row.begun_at is not None for row in self.rows)

    def body(self, row: AnswerRow, markers: frozenset[str]) -> dict[str, Any]:
        """Return the body of the next request to llama-server for one row. `markers` are special
        tokens whose text is sent."""
        prepared, sampling = self.prepared, self.prepared.request.sampling
        common: dict[str, Any] = {
            "prompt": [*prepared.tokens],
            "id_slot": row.slot.number,
            "n_predict": prepared.max_tokens,
            "stream": True,
            "return_progress": True,
            "cache_prompt": row.slot.keeps or row.is_continued,
            "preserved_tokens": sorted(markers),
            "samplers": [*SAMPLERS],
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": row.seed % MOST_SEED,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": self.cells,
            "logit_bias": [[token, bias] for token, bias in sampling.logit_bias.items()],
        }
        if row.slices is None:
            return common
        return common | (row.slices.reading(BATCH_TOKENS) or row.slices.asking())

    def read(self, frame: Frame, row: AnswerRow) -> None:
        """Report the progress of the prompt, which all rows share."""
        if row.choice == 0 and 0 < frame.read < frame.prompt:
            self.request.read_prompt(frame.read, frame.prompt)

    def take(self, frame: Frame, row: AnswerRow, now: float) -> bool:
        """Send the text of a frame; return whether the row is over, because the frame is the last
        or because the text is complete. A row in slices may need another request after its frame.
        Raises the reader's errors, and DeadEnd."""
        self._check(frame)
        if frame.stop is not None and not row.is_continued:
            row.cached, row.is_continued = frame.cached, True
        if row.slices is not None:
            return self._take_slice(frame, row, row.slices, now)
        new = max(0, frame.tokens - row.tokens)
        if new and row.first_at is None:
            row.first_at = now
        ended = False
        for place in range(max(new, 1 if frame.text else 0)):
            is_last = place >= new - 1
            row.sent.text = frame.text if is_last else ""
            output = row.reader.push(SampledToken(NO_ROW, UNSENT))
            self.request.put(row.choice, output.pieces, now)
            ended = ended or output.ended
        row.tokens = max(row.tokens, frame.tokens)
        if ended:
            self._finish(row, "stop", now)
        elif frame.stop is not None:
            self._finish(row, "length" if frame.stop == "limit" else "stop", now)
        return row.is_over

    def _check(self, frame: Frame) -> None:
        """Raise ValueError if a frame has more tokens than were requested, or unknown ones."""
        if max(frame.tokens, len(frame.ids)) > self.prepared.max_tokens:
            raise ValueError("llama-server sent more tokens than were requested")
        if any(not 0 <= token < self._vocabulary for token in frame.ids):
            raise ValueError("llama-server sent a token that the model does not have")

    def history(self) -> PromptAnswer | None:
        """Return all prompt and output tokens if the request wants them; else None."""
        slices = self.rows[0].slices
        if self.prepared.request.history is None or slices is None:
            return None
        return PromptAnswer((*self.prepared.tokens, *slices.made), "", 0)

    def usage(self, now: float) -> Usage:
        """Return the sums over all rows; times are those of the slowest row, the waiting time that
        of the first."""
        rows = self.rows
        begun = [row.begun_at for row in rows if row.begun_at is not None]
        first_at = min(begun, default=now)
        firsts = [row.first_at for row in rows if row.first_at is not None]
        return Usage(
            prompt_tokens=len(self.prepared.tokens),
            completion_tokens=sum(row.tokens for row in rows),
            cached_tokens=rows[0].cached,
            reasoning_tokens=sum(row.reasoning_tokens for row in rows),
            queue_s=max(0.0, first_at - self.request.received_at),
            prefill_s=max((at - first_at for at in firsts), default=0.0),
            decode_s=max((self._decode_s(row, now) for row in rows), default=0.0),
        )

    def _decode_s(self, row: AnswerRow, now: float) -> float:
        if row.first_at is None:
            return 0.0
        return (now if row.ended_at is None else row.ended_at) - row.first_at

    def _take_slice(self, frame: Frame, row: AnswerRow, slices: Slices, now: float) -> bool:
        if frame.stop is None or slices.was_prompt():
            return False
        sampled = slices.sampled(frame)
        if not sampled and not slices.waits_for_score:
            raise ValueError("llama-server sent no token")
        slices.took(now - row.asked_at, len(sampled))
        is_void = False
        for token in sampled:
            if is_void or row.is_over or not slices.may_come(token.token):
                slices.drop_rest()
                break
            is_end = token is sampled[-1] and token.token == frame.ids[-1] and frame.stop == "eos"
            is_void = self._push(row, slices, token, now, is_end=is_end)
        if is_void:
            slices.drop_rest()
        while not row.is_over and (forced := slices.forced()) is not None:
            self._push(row, slices, SampledToken(NO_ROW, forced), now, is_end=False)
        return row.is_over

    def _push(
        self, row: AnswerRow, slices: Slices, token: SampledToken, now: float, *, is_end: bool
    ) -> bool:
        """Add a token to a row, and end the row if the token does so. Return whether to drop the
        tokens after it in the slice. `is_end`: llama-server ends answers at this token."""
        is_void = slices.add(token.token)
        row.tokens += 1
        if row.first_at is None:
            row.first_at = now
        output = row.reader.push(token)
        self.request.put(row.choice, output.pieces, now)
        ends = token.token in self.prepared.stop_token_ids or (is_end and not slices.goes_on)
        if output.ended or ends:
            self._finish(row, "stop", now)
        elif row.tokens >= self.prepared.max_tokens:
            self._finish(row, "length", now)
        return is_void

    def _finish(self, row: AnswerRow, reason: FinishReason, now: float) -> None:
        last = row.reader.finish(reason)
        row.reasoning_tokens, row.ended_at = last.reasoning_tokens, now
        self.request.end_choice(
            row.choice, last.finish_reason, now, stop=last.stop, pieces=last.pieces
        )
