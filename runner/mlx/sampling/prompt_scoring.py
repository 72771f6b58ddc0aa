"""Talks to MLX: computes the log-probabilities of prompt tokens, from the logits of prompt chunks.

For each position, only two things leave the device: the log-probability of the prompt's token, and
the k likeliest tokens with theirs. They are computed in float32 from the model's own logits,
without temperature and bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from bus.wire.ids import TokenId
from runner.engine import PromptScores, RowId, RowSpec
from runner.mlx.sampling.batch_sampler import Listing, listing_of


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """The chunk tokens[start:stop] of a row, which is row `index` of a padded forward pass."""

    index: int
    spec: RowSpec
    start: int
    stop: int

    @property
    def predicted(self) -> int:
        """Return how many prompt tokens the chunk's logits predict. Each position predicts the
        token after it."""
        prompt_tokens = len(self.spec.tokens) - self.spec.made
        return max(min(self.stop, prompt_tokens - 1) - self.start, 0)

    @property
    def next_tokens(self) -> tuple[TokenId, ...]:
        """Return the prompt tokens that the chunk's logits predict."""
        return self.spec.tokens[self.start + 1 : self.start + 1 + self.predicted]


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """The log-probabilities of the tokens of several chunks, in one array, not read yet. `listing`
    is None if no chunk predicts a token."""

    chunks: tuple[ScoredChunk, ...]
    listing: Listing | None

    def arrays(self) -> list[mx.array]:
        """Return the arrays to submit to the device for computing."""
        return [] if self.listing is None else self.listing.arrays()

    def read(self) -> Iterator[PromptScores]:
        """Wait for the device, and yield the scores of each chunk. The scores of a row's first
        chunk begin with token 0, which no position predicts; its log-probability is given as 0."""
        chosen, top_ids, top_logprobs = self._read()
        at = 0
        for chunk in self.chunks:
            here = slice(at, at + chunk.predicted)
            at += chunk.predicted
            most = chunk.spec.prompt_logprobs or 0
            logprobs = tuple(chosen[here])
            top = tuple(
                tuple((TokenId(token), logprob) for token, logprob in zip(ids, values, strict=True))
                for ids, values in zip(
                    (row[:most] for row in top_ids[here]),
                    (row[:most] for row in top_logprobs[here]),
                    strict=True,
                )
            )
            first = chunk.start + 1
            if chunk.start == 0:
                first, logprobs, top = 0, (0.0, *logprobs), ((), *top)
            if logprobs:
                yield PromptScores(RowId(chunk.spec.row), first, logprobs, top)

    def _read(self) -> tuple[list[float], list[list[int]], list[list[float]]]:
        listing = self.listing
        if listing is None:
            return [], [], []
        chosen: list[float] = listing.chosen.tolist()  # pyright: ignore[reportAssignmentType]
        if listing.top_ids is None or listing.top_logprobs is None:
            return chosen, [[] for _ in chosen], [[] for _ in chosen]
        ids: list[list[int]] = listing.top_ids.tolist()  # pyright: ignore[reportAssignmentType]
        values: list[list[float]] = listing.top_logprobs.tolist()  # pyright: ignore[reportAssignmentType]
        return chosen, ids, values


def score_chunks(logits: mx.array, chunks: Sequence[ScoredChunk]) -> ScoredRows:
    """Return the log-probabilities of the tokens that these chunks predict. `logits`, (rows,
    tokens, vocabulary), are those of the forward pass that computes the chunks."""
    counts = [chunk.predicted for chunk in chunks]
    if not sum(counts):
        return ScoredRows(tuple(chunks), None)
    rows = np.repeat([chunk.index for chunk in chunks], counts)
    positions = np.concatenate([np.arange(count) for count in counts])
    tokens = np.concatenate([np.array(chunk.next_tokens, dtype=np.int32) for chunk in chunks])
    own = logits[mx.array(rows), mx.array(positions)].astype(mx.float32)
    most = max(chunk.spec.prompt_logprobs or 0 for chunk in chunks)
    return ScoredRows(tuple(chunks), listing_of(own, mx.array(tokens), most))
