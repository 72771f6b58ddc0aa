"""The inputs of one open embedding request.

Pure: time arrives as `now`. Inputs are tokenised and computed in order. Each message with vectors
costs one credit. Without credit, nothing is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bus.wire.errors import FailReason, Refusal
from bus.wire.messages.requests import GenerationRequest, InputsPrompt, Usage
from runner.embedding.inputs import InputTokens, inputs_field, next_part
from runner.serving import OpenRequest, VectorsPiece

READY_TOKENS = 16_384
"""Inputs are tokenised until this many tokens of a request wait to be computed."""
FAILS: dict[str, FailReason] = {"context_length": "context_length", "not_ready": "runner_lost"}
"""Maps the reason of a refused input to the fail reason of its request; other reasons become
`bad_request`."""


class OpenEmbedding:
    """The inputs of `request`, from tokenising to vectors. `ready` are its tokenised inputs. `turn`
    is the number of the last batch that had inputs of this request."""

    def __init__(self, request: OpenRequest) -> None:
        prompt = request.request.prompt
        assert isinstance(prompt, InputsPrompt), "a request without inputs was not refused"
        self.request = request
        self.priority = request.request.priority
        self.dimensions = prompt.dimensions
        self.ready: deque[InputTokens] = deque()
        self.turn = 0
        self._prompt = prompt
        self._is_preparing = False
        self._parted = 0
        self._prepared = 0
        self._computed = 0
        self._tokens = 0
        self._ready_tokens = 0
        self._begun_at: float | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether the next input of the request may be computed."""
        return bool(self.ready) and self.request.choices[0].credit > 0

    # --- inputs ------------------------------------------------------------------------

    def part(self) -> GenerationRequest | None:
        """Return the next part of the inputs to tokenise; None if enough inputs are ready, a part
        is being tokenised, or none is left."""
        if self.request.is_over or self._is_preparing or self._ready_tokens >= READY_TOKENS:
            return None
        if self._parted == len(self._prompt.inputs):
            return None
        part = next_part(self._prompt, self._parted)
        self._parted += len(part.inputs)
        self._is_preparing = True
        return self.request.request.model_copy(update={"prompt": part})

    def prepared(self, prompts: Sequence[InputTokens]) -> None:
        """Add the tokenised inputs of the last part."""
        self._is_preparing = False
        self._prepared += len(prompts)
        self._ready_tokens += sum(len(prompt.tokens) for prompt in prompts)
        self.ready.extend(prompts)

    def refused(self, refusal: Refusal, now: float) -> None:
        """Fail the request because an input of the last part is invalid."""
        facts = dict(refusal.facts)
        field = refusal.field
        if "input" in facts:
            facts["input"] += self._prepared
            name, many = inputs_field(self._prompt), len(self._prompt.inputs) > 1
            field = f"{name}[{facts['input']}]" if many or name != "input" else name
        reason = FAILS.get(refusal.reason, "bad_request")
        self.request.fail(reason, refusal.message, now, {**facts, "field": field})

    # --- batches -----------------------------------------------------------------------

    def take(self, turn: int, now: float) -> InputTokens:
        """Remove and return the next ready input, for batch number `turn`."""
        prompt = self.ready.popleft()
        self._ready_tokens -= len(prompt.tokens)
        self._tokens += len(prompt.tokens)
        self.turn = turn
        if self._begun_at is None:
            self._begun_at = now
        return prompt

    def computed(
        self, prompts: Sequence[InputTokens], vectors: Sequence[bytes], now: float
    ) -> None:
        """Send the vectors of the inputs that were taken for the last batch. The vector of the
        request's last input ends the request."""
        start = self._computed
        self._computed += len(vectors)
        cut = tuple(start + place for place, prompt in enumerate(prompts) if prompt.cut_off)
        self.request.put(0, (VectorsPiece(start, tuple(vectors), cut),), now)
        if self._computed == len(self._prompt.inputs):
            self.request.finish(now)

    def close(self, now: float) -> Usage:
        """Drop the ready prompts. Return the tokens read, the seconds until the first input was
        taken for a batch, and the seconds since then."""
        self.ready.clear()
        begun_at = now if self._begun_at is None else self._begun_at
        return Usage(
            prompt_tokens=self._tokens,
            queue_s=begun_at - self.request.received_at,
            prefill_s=now - begun_at,
        )
