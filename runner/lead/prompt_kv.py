"""Talks to the engine's loop: computes prompts for other nodes, and says what they would cost
(decision 0109).

Such a request ends once the KV of its prompt is on the disk, because other nodes copy files only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from bus.links.reactor import Reactor
from bus.models.kv import TokenChain, kept_apart
from bus.wire.messages.tokens import PromptAnswer
from runner.lead.lead_loop import LeadLoop
from runner.serving import OpenRequest
from runner.text import PreparedRequest

LOOK_S = 0.02
MOST_S = 10.0
"""A request ends after this time even if its KV is not on the disk."""


class PromptKv:
    """The prompts that a runner computes for other nodes. `flush` sends the entries of requests
    that wait to be sent."""

    def __init__(self, loop: LeadLoop, reactor: Reactor, flush: Callable[[], None]) -> None:
        self._loop = loop
        self._reactor = reactor
        self._flush = flush
        self.writing = 0
        """How many requests wait until their KV is on the disk."""

    def cost(self, request: OpenRequest, tokens: Sequence[int]) -> PromptAnswer:
        """Return what computing a prompt of these tokens would cost now, as JSON."""
        facts, seed = self._loop.facts, kept_apart(request.request)
        way = self._loop.kv_way(request.request.adapter or "")
        with self._loop.scheduling() as scheduler:
            cost = scheduler.intake.prompt_cost(TokenChain(tokens, seed=seed), way)
        context_tokens = 0 if facts is None else facts.context_tokens
        return PromptAnswer((), cost.model_dump_json(), context_tokens)

    def write(self, prepared: PreparedRequest, finish: Callable[[], None]) -> None:
        """Call `finish` once the prompt's KV is on the disk, or is not going to be."""
        chain = TokenChain(prepared.tokens, seed=kept_apart(prepared.request))
        self.writing += 1
        self._look(chain, finish, self._reactor.now() + MOST_S)

    def _look(self, chain: TokenChain, finish: Callable[[], None], until: float) -> None:
        if self._loop.is_writing(chain) and self._reactor.now() < until:
            self._reactor.later(LOOK_S, partial(self._look, chain, finish, until))
            return
        self.writing -= 1
        finish()
        self._flush()
