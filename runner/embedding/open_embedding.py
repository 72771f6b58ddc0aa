"""The state of one open embedding request: inputs, credit, entry numbers.

Pure: time arrives as `now`. Inputs are tokenised and computed in order. Entries are numbered
without gaps in the order they are sent. Each entry of vectors costs one credit; exactly one
terminal entry comes last. Without credit, nothing is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bus.wire.errors import FailReason, FinishReason, Refusal
from bus.wire.messages.requests import GenerationRequest, InputsPrompt, Usage
from bus.wire.messages.tokens import ChoiceEnd, Entry, Failed, Finished, Submit, Vectors
from bus.wire.shares import Sharer
from runner.embedding.inputs import InputTokens, next_part

READY_TOKENS = 16_384
"""Inputs are tokenised until this many tokens of a request wait to be computed."""
FAILS: dict[str, FailReason] = {"context_length": "context_length"}
"""The fail reason of each refusal; others are bad requests."""


class OpenEmbedding:
    """One open embedding request, as the module describes. `peer` is its gateway process. `ready`
    are its tokenised prompts. `turn` is the number of the last batch that had inputs of this
    request."""

    def __init__(self, submit: Submit, *, peer: bytes, sharer: Sharer, now: float) -> None:
        prompt = submit.request.prompt
        assert isinstance(prompt, InputsPrompt), "taken in"
        self.request: GenerationRequest = submit.request
        self.request_id = submit.request.request_id
        self.dimensions = prompt.dimensions
        self.peer = peer
        self.sharer = sharer
        self.size = sum(map(len, prompt.inputs))
        self.credit = submit.credit
        self.deadline_at = now + submit.remaining_ms / 1000
        self.ready: deque[InputTokens] = deque()
        self.turn = 0
        self.is_preparing = False
        self.is_over = False
        self._prompt = prompt
        self._parted = 0
        self._prepared = 0
        self._computed = 0
        self._tokens = 0
        self._ready_tokens = 0
        self._seq = 0
        self._since_at = now
        self._begun_at: float | None = None
        self._stalled_at: float | None = None

    # --- inputs ------------------------------------------------------------------------

    def part(self) -> GenerationRequest | None:
        """Return the next part to tokenise; None if enough is ready, a part is being tokenised, or
        none is left."""
        if self.is_over or self.is_preparing or self._ready_tokens >= READY_TOKENS:
            return None
        if self._parted == len(self._prompt.inputs):
            return None
        part = next_part(self._prompt, self._parted)
        self._parted += len(part.inputs)
        self.is_preparing = True
        return self.request.model_copy(update={"prompt": part})

    def prepared(self, prompts: Sequence[InputTokens]) -> None:
        """Add the prompts of the last part."""
        self.is_preparing = False
        self._prepared += len(prompts)
        self._ready_tokens += sum(len(prompt.tokens) for prompt in prompts)
        self.ready.extend(prompts)

    def refused(self, refusal: Refusal, now: float) -> list[Entry]:
        """End the request because an input of the last part is invalid."""
        facts = dict(refusal.facts)
        field = refusal.field
        if "input" in facts:
            facts["input"] += self._prepared
            field = f"input[{facts['input']}]" if len(self._prompt.inputs) > 1 else "input"
        reason = FAILS.get(refusal.reason, "bad_request")
        return self.fail(reason, refusal.message, now, {**facts, "field": field})

    # --- batches -----------------------------------------------------------------------

    def take(self, turn: int, now: float) -> InputTokens:
        """Take the next ready prompt for batch number `turn`."""
        prompt = self.ready.popleft()
        self._ready_tokens -= len(prompt.tokens)
        self._tokens += len(prompt.tokens)
        self.turn = turn
        if self._begun_at is None:
            self._begun_at = now
        return prompt

    def computed(
        self, prompts: Sequence[InputTokens], vectors: Sequence[bytes], now: float
    ) -> list[Entry]:
        """Return entries for the vectors of the prompts taken last, and the terminal entry after
        the last vector."""
        if self.is_over:
            return []
        start = self._computed
        self._computed += len(vectors)
        cut = tuple(start + place for place, prompt in enumerate(prompts) if prompt.cut_off)
        self.credit -= 1
        entry = Vectors(self.request_id, self._next(), 0, start, tuple(vectors), cut)
        self._watch_credit(now)
        if self._computed < len(self._prompt.inputs):
            return [entry]
        return [entry, *self._end("stop", now)]

    # --- the gateway -------------------------------------------------------------------

    def grant(self, grant: int, now: float) -> None:
        self.credit += grant
        self._watch_credit(now)

    def stalled_s(self, now: float) -> float:
        """Return for how many seconds the request has waited for credit."""
        return 0.0 if self._stalled_at is None else now - self._stalled_at

    def cancel(self, now: float) -> list[Entry]:
        return [] if self.is_over else self._end("cancelled", now)

    def fail(
        self, reason: FailReason, message: str, now: float, details: dict[str, object] | None = None
    ) -> list[Entry]:
        """Fail the request if it is still open; drop its ready prompts."""
        if self.is_over:
            return []
        self._close()
        usage = self.usage(now)
        return [Failed(self.request_id, self._next(), reason, message, usage, details or {})]

    def usage(self, now: float) -> Usage:
        """Return the tokens read so far, the seconds until the first result, and the seconds
        since."""
        begun_at = now if self._begun_at is None else self._begun_at
        return Usage(
            prompt_tokens=self._tokens,
            queue_s=begun_at - self._since_at,
            prefill_s=now - begun_at,
        )

    # --- inside --------------------------------------------------------------------------

    def _end(self, finish: FinishReason, now: float) -> list[Entry]:
        self._close()
        return [
            ChoiceEnd(self.request_id, self._next(), 0, finish, None),
            Finished(self.request_id, self._next(), self.usage(now)),
        ]

    def _close(self) -> None:
        self.is_over = True
        self.ready.clear()
        self._ready_tokens = 0

    def _next(self) -> int:
        seq = self._seq
        self._seq += 1
        return seq

    def _watch_credit(self, now: float) -> None:
        if self.credit > 0:
            self._stalled_at = None
        elif self._stalled_at is None:
            self._stalled_at = now
