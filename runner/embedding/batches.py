"""Choose the inputs of the next batch and its size.

Pure. A batch has as many tokens as take about `TARGET_S` at the measured pace, so a request with
one input waits for at most one batch of others. Higher priorities come first. Within a priority,
the requester that was in a batch longest ago goes first; requesters (`bus.wire.shares`) then
alternate, one input each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from bus.wire.shares import Sharer, Shares
from runner.embedding.inputs import InputTokens
from runner.embedding.open_embedding import OpenEmbedding
from runner.text import RankedPair

TARGET_S = 0.1
LEAST_TOKENS, MOST_TOKENS = 128, 32_768
"""Limits of a batch at any pace; a longer input is a batch of its own."""
MOST_INPUTS = 256
MOST_VECTOR_BYTES = 1 << 20
"""The most bytes of vectors in a batch: they are sent as one frame to each gateway process."""
USUAL_PACE = 2_000.0
"""The pace in tokens per second that is assumed until the first batch is measured."""


@dataclass(slots=True)
class Batch:
    """Inputs that are computed together: the next inputs of each request, in order.

    `number` counts from 1. All vectors have the same `dimensions` (None: the model's own width).
    """

    number: int
    dimensions: int | None
    parts: dict[OpenEmbedding, list[InputTokens]] = field(
        default_factory=dict[OpenEmbedding, list[InputTokens]]
    )
    tokens: int = 0
    inputs: int = 0

    def add(self, request: OpenEmbedding, now: float) -> None:
        """Add the next input of a request."""
        prompt = request.take(self.number, now)
        self.parts.setdefault(request, []).append(prompt)
        self.tokens += len(prompt.tokens)
        self.inputs += 1

    @property
    def prompts(self) -> list[Sequence[int]]:
        return [prompt.tokens for part in self.parts.values() for prompt in part]

    @property
    def pairs(self) -> list[RankedPair]:
        """Return the inputs of requests that rank documents."""
        prompts = (prompt for part in self.parts.values() for prompt in part)
        return [prompt for prompt in prompts if isinstance(prompt, RankedPair)]


class BatchPace:
    """Measured tokens per second of recent batches."""

    def __init__(self) -> None:
        self._tokens_per_s = USUAL_PACE
        self._measured = False

    @property
    def budget_tokens(self) -> int:
        return int(min(max(self._tokens_per_s * TARGET_S, LEAST_TOKENS), MOST_TOKENS))

    def expected_s(self, tokens: int) -> float:
        return tokens / self._tokens_per_s

    def measured(self, tokens: int, seconds: float) -> None:
        """Update the pace from a batch of `tokens` that took `seconds`. A small batch can only
        raise the pace, because it says little about large ones."""
        pace = tokens / max(seconds, 1e-6)
        if not self._measured:
            self._tokens_per_s, self._measured = pace, True
        elif tokens >= LEAST_TOKENS // 2 or pace > self._tokens_per_s:
            self._tokens_per_s += 0.3 * (pace - self._tokens_per_s)


def next_batch(
    requests: Iterable[OpenEmbedding],
    *,
    number: int,
    budget_tokens: int,
    vector_bytes: int,
    now: float,
) -> Batch | None:
    """Return the next batch, or None if no request has both ready inputs and credit. `vector_bytes`
    is the largest size of one vector."""
    waiting = [request for request in requests if request.is_ready]
    if not waiting:
        return None
    waiting.sort(key=lambda request: (request.priority, request.turn))
    batch = Batch(number, waiting[0].dimensions)
    most = max(1, min(MOST_INPUTS, MOST_VECTOR_BYTES // vector_bytes))
    same = [request for request in waiting if request.dimensions == batch.dimensions]
    for _, equals in groupby(same, key=lambda request: request.priority):
        _fill(batch, equals, budget_tokens, most, now)
    return batch


def _fill(
    batch: Batch, requests: Iterable[OpenEmbedding], budget_tokens: int, most: int, now: float
) -> None:
    """Add inputs to the batch one by one until no more fit. The next input is from the requester
    with the fewest inputs in the batch; of several such requesters, the first."""
    shares, asking = Shares(), dict[Sharer, deque[OpenEmbedding]]()
    for request in requests:
        asking.setdefault(request.request.sharer, deque()).append(request)
    while asking and batch.inputs < most:
        sharer = min(asking, key=shares.weight)
        mine = asking[sharer]
        request = mine.popleft()
        if not batch.inputs or batch.tokens + len(request.ready[0].tokens) <= budget_tokens:
            batch.add(request, now)
            shares.take(sharer)
            if request.ready:
                mine.append(request)
        if not mine:
            del asking[sharer]
