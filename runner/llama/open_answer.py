"""The answer to one open request: its rows at llama-server, and the text of each.

Pure: time arrives as `now`. A row is one choice. The caller passes the frames of a row in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from bus.wire.errors import FinishReason
from bus.wire.ids import TokenId
from bus.wire.messages.requests import GenerationRequest, Usage
from runner.engine import RowId, SampledToken
from runner.llama.frames import Frame
from runner.serving import OpenRequest
from runner.text import ChoiceReader, PreparedRequest, SentText, TextWorks

NO_ROW, UNSENT = RowId(0), TokenId(-1)
"""The row and the id of a token of which only the text is known."""
SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""The samplers in the order in which shoal's own engine applies them."""
MOST_SEED = 2**32 - 1
"""llama-server draws a seed of its own if it gets this one, so it is never sent."""


class SentWorks(TextWorks, Protocol):
    """The text work for an engine that makes the text of its tokens itself (`runner.text.Text`)."""

    @property
    def markers(self) -> frozenset[str]:
        """Return the texts of the markers that the readers of choices must see."""
        ...

    def sent_choice(self, prepared: PreparedRequest, choice: int) -> tuple[ChoiceReader, SentText]:
        """Return a new reader of one choice, and the place for the text of its next token."""
        ...


@dataclass(slots=True)
class AnswerRow:
    """One choice. `begun_at` is when llama-server got it, `first_at` when its first token came;
    `is_over`: it has ended."""

    choice: int
    reader: ChoiceReader
    sent: SentText
    seed: int
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
    """The answer to `request`. `seeds` has one seed per choice."""

    def __init__(
        self, request: OpenRequest, prepared: PreparedRequest, works: SentWorks, seeds: list[int]
    ) -> None:
        self.request = request
        self.prepared = prepared
        self.rows: list[AnswerRow] = []
        for choice, seed in zip(prepared.choices, seeds, strict=True):
            reader, sent = works.sent_choice(prepared, choice.choice)
            self.rows.append(AnswerRow(choice.choice, reader, sent, seed))

    @property
    def cells(self) -> int:
        """Return the tokens of KV cache that one row reserves."""
        return len(self.prepared.tokens) + self.prepared.max_tokens

    @property
    def has_begun(self) -> bool:
        return any(row.begun_at is not None for row in self.rows)

    def body(self, row: AnswerRow, markers: frozenset[str]) -> dict[str, Any]:
        """Return the body of the request to llama-server for one row. `markers` are special tokens
        whose text is sent."""
        prepared, sampling = self.prepared, self.prepared.request.sampling
        return {
            "prompt": [*prepared.tokens],
            "n_predict": prepared.max_tokens,
            "stream": True,
            "return_progress": True,
            "cache_prompt": prepared.request.key_id is None,
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

    def read(self, frame: Frame, row: AnswerRow) -> None:
        """Report the progress of the prompt, which all rows share."""
        if row.choice == 0 and 0 < frame.read < frame.prompt:
            self.request.read_prompt(frame.read, frame.prompt)

    def take(self, frame: Frame, row: AnswerRow, now: float) -> bool:
        """Send the text of a frame; return whether the row is over, because the frame is the last
        or because the text is complete. Raises the reader's errors."""
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
        row.cached = max(row.cached, frame.cached)
        if ended:
            self._finish(row, "stop", now)
        elif frame.stop is not None:
            self._finish(row, "length" if frame.stop == "limit" else "stop", now)
        return row.is_over

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

    def _finish(self, row: AnswerRow, reason: FinishReason, now: float) -> None:
        last = row.reader.finish(reason)
        row.reasoning_tokens, row.ended_at = last.reasoning_tokens, now
        self.request.end_choice(
            row.choice, last.finish_reason, now, stop=last.stop, pieces=last.pieces
        )


def without_strict(request: GenerationRequest) -> tuple[GenerationRequest, tuple[str, ...]]:
    """Return the request without strict tools, which need a grammar, and the paths of the fields
    that thus have no effect."""
    tools: Any = getattr(request.prompt, "tools", ())
    if not any(tool.strict for tool in tools):
        return request, ()
    loose = tuple(tool.model_copy(update={"strict": False}) for tool in tools)
    prompt = request.prompt.model_copy(update={"tools": loose})
    return request.model_copy(update={"prompt": prompt}), ("tools.strict",)
