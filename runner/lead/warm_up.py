"""The prompts that a runner computes before it is ready.

Pure. The first prompt initialises every part of the engine; its cost is ignored. The other prompts
measure the cost of prefill. So when the first long prompt arrives while rows decode, the decodes
already get their share of the time. A prompt that is expected to take over a second is skipped.
"""

from __future__ import annotations

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import GenerationRequest, TokensPrompt
from runner.engine import EngineFacts
from runner.schedule import RowEvent, RowFailed, RowFinished, Scheduler
from runner.text import PreparedChoice, PreparedRequest

LENGTHS = (48, 48, 256)
"""Lengths of the warm-up prompts in tokens."""
MAKES = 8
LONGEST_S = 1.0
"""A warm-up prompt that is expected to take longer is skipped."""


class WarmUp:
    """Submits the prompts. Call `advance` with the scheduler's lock held, until it returns
    False."""

    def __init__(self, model: ModelId, facts: EngineFacts, scheduler: Scheduler) -> None:
        self._model = model
        self._facts = facts
        self._scheduler = scheduler
        self._done = 0
        self._current: RequestId | None = None

    def advance(self, now: float) -> bool:
        """Submit the next prompt. Return False if none is left or fits the context. Raises
        RuntimeError if the scheduler refuses it."""
        if self._done == 1:
            self._scheduler.forget_costs()
        if self._done == len(LENGTHS):
            return False
        length, context = LENGTHS[self._done], self._facts.context_tokens
        makes = min(MAKES, context // 2)
        longest = context - makes
        slow = self._done > 1 and self._scheduler.prefill_s(length) > LONGEST_S
        if not makes or slow or (self._done and length > longest):
            return False
        prepared = self._prompt(min(length, longest), makes)
        taken = self._scheduler.submit(prepared, seeds=[0], now=now)
        if isinstance(taken, Refusal):
            raise RuntimeError(f"warm-up: {taken.message}")
        self._current = prepared.request_id
        self._done += 1
        return True

    def ended(self, event: RowEvent) -> bool:
        """Return whether this event ends the prompt submitted last. Raises RuntimeError if the
        engine failed it."""
        if event.key.request_id != self._current:
            return False
        if isinstance(event, RowFailed):
            raise RuntimeError(f"warm-up: {event.message}")
        return isinstance(event, RowFinished)

    def _prompt(self, length: int, makes: int) -> PreparedRequest:
        """Return a prompt with a unique beginning, so that the prefix cache does not match it."""
        vocabulary, first = self._facts.vocabulary, 1 + self._done
        tokens = tuple(TokenId((first + 7 * n) % vocabulary) for n in range(length))
        request = GenerationRequest(
            request_id=RequestId(f"warm-up-{self._done}"),
            model=self._model,
            prompt=TokensPrompt(token_ids=tokens),
        )
        choices = (PreparedChoice(0, 0),)
        return PreparedRequest(request, tokens, makes, frozenset(), choices, is_kept=False)
