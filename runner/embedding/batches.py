"""Which inputs are computed together next, and how much that is at a time.

Pure. A batch has so many tokens as take about `TARGET_S` at the measured pace: a request with one
input waits for one batch of others at most, however many inputs they have. Priorities come first;
among equals those have their turn first whose last turn is longest ago, then each of those who ask
(`bus.wire.shares`) one input after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from bus.wire.shares import Sharer, Shares
from runner.embedding.inputs import InputTokens
from runner.embedding.open_embedding import OpenEmbedding

TARGET_S = 0.1
LEAST_TOKENS, MOST_TOKENS = 128, 32_768
"""Of a batch, whatever the pace; one input that is longer is a batch of its own."""
MOST_INPUTS = 256
MOST_VECTOR_BYTES = 1 << 20
"""The vectors of a batch travel in one frame for each gateway process."""
USUAL_PACE = 2_000.0
"""Tokens per second, until the first batch has been measured."""


@dataclass(slots=True)
class Batch:
    """Inputs that are computed together, by request, each with its prompts in order.

    `number` counts from 1. All vectors have the same `dimensions` (None: as many as there are).
    """

    number: int
    dimensions: int | None
    parts: dict[OpenEmbedding, list[InputTokens]] = field(
        default_factory=dict[OpenEmbedding, list[InputTokens]]
    )
    tokens: int = 0
    inputs: int = 0

    def add(self, request: OpenEmbedding, now: float) -> None:
        """Take the next input of a request."""
        prompt = request.take(self.number, now)
        self.parts.setdefault(request, []).append(prompt)
        self.tokens += len(prompt.tokens)
        self.inputs += 1

    @property
    def prompts(self) -> list[Sequence[int]]:
        """Return the tokens of all inputs, request by request."""
        return [prompt.tokens for part in self.parts.values() for prompt in part]


class BatchPace:
    """How many tokens a second are computed, as the last batches say."""

    def __init__(self) -> None:
        self._tokens_per_s = USUAL_PACE
        self._measured = False

    @property
    def budget_tokens(self) -> int:
        """Return how many tokens the next batch may have."""
        return int(min(max(self._tokens_per_s * TARGET_S, LEAST_TOKENS), MOST_TOKENS))

    def expected_s(self, tokens: int) -> float:
        """Return how long a batch of so many tokens is expected to take."""
        return tokens / self._tokens_per_s

    def measured(self, tokens: int, seconds: float) -> None:
        """Learn from a batch. Small ones say little of large ones: they only raise the pace."""
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
    """Return the next batch, taken from the requests that have inputs ready and credit; None where
    none has. `vector_bytes` are those of one vector at most."""
    waiting = [one for one in requests if one.ready and one.credit > 0]
    if not waiting:
        return None
    waiting.sort(key=lambda one: (one.request.priority, one.turn))
    batch = Batch(number, waiting[0].dimensions)
    most = max(1, min(MOST_INPUTS, MOST_VECTOR_BYTES // vector_bytes))
    same = [one for one in waiting if one.dimensions == batch.dimensions]
    for _, equals in groupby(same, key=lambda one: one.request.priority):
        _fill(batch, equals, budget_tokens, most, now)
    return batch


def _fill(
    batch: Batch, requests: Iterable[OpenEmbedding], budget_tokens: int, most: int, now: float
) -> None:
    """Take one input after the other, of who has fewest in the batch and then of who was here
    first, until none is left that fits."""
    shares, asking = Shares(), dict[Sharer, deque[OpenEmbedding]]()
    for request in requests:
        asking.setdefault(request.sharer, deque()).append(request)
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
