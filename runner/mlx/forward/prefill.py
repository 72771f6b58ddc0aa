# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: runs the forward passes of prompts, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import mlx.core as mx
import numpy as np

from runner.engine import PrefillChunk, RowFailure
from runner.mlx.adapters import AdapterBank
from runner.mlx.forward.microbatch import record
from runner.mlx.kv import GroupKV, GroupShape, evaluated
from runner.mlx.model.device import bounded_width
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.mtp import HiddenStates
from runner.mlx.ranks.comm import Comm
from runner.mlx.sampling import EngineRow, PendingStep, ScoredChunk, TokenSource, score_chunks

PART_TOKENS = 64
"""A pipeline divides the chunks of a prefill group into parts of at least this many tokens, so that
its stages work in parallel. Smaller parts are hardly faster."""

Work = tuple[EngineRow, PrefillChunk]


class Prefill:
    """Runs the forward passes of prompts, chunk by chunk. Each row has its own caches."""

    def __init__(
        self,
        model: Any,
        head: LastTokenHead,
        source: TokenSource,
        comm: Comm,
        adapters: AdapterBank,
        hidden: HiddenStates,
        *,
        groups: bool,
        pads: bool,
    ) -> None:
        """`groups`: chunks of several rows can be computed as one padded batch. `pads`: such a
        batch, even of one row, is padded to a power of two."""
        self._model = model
        self._head = head
        self._source = source
        self._comm = comm
        self._adapters = adapters
        self._hidden = hidden
        self._groups = groups
        self._pads = groups and pads

    def compute(self, group: Sequence[Work], pending: PendingStep) -> None:
        """Start the forward passes for chunks of prompts. A row whose last chunk is among them gets
        its first token. A row whose chunk is out of order fails. If a forward pass raises an error,
        its rows fail; in a group of ranks, the error is raised instead."""
        fit = [work for work in group if self._follows(work, pending)]
        for part in [fit] if len(fit) == 1 else self._parts(fit):
            self._compute_part(part, pending)

    def _parts(self, fit: list[Work]) -> list[list[Work]]:
        """Divide the chunks into parts; each part is one forward pass. If the chunks are large
        enough, there are as many parts as pipeline stages, so that the stages work in parallel."""
        if not self._groups:
            return [[work] for work in fit]
        tokens = sum(chunk.stop - chunk.start for _, chunk in fit)
        count = max(1, min(self._comm.microbatches, len(fit), tokens // PART_TOKENS))
        size = max(1, -(-len(fit) // count))
        return [fit[at : at + size] for at in range(0, len(fit), size)]

    def _follows(self, work: Work, pending: PendingStep) -> bool:
        row, chunk = work
        follows = row.computed in (0, chunk.start) and not row.batched
        if follows and chunk.start < chunk.stop <= len(row.spec.tokens):
            return True
        message = (
            f"cannot compute chunk {chunk.start}..{chunk.stop}: {row.computed} of "
            f"{len(row.spec.tokens)} tokens of its row are computed"
        )
        pending.failures.append(RowFailure(row.name, "internal", message))
        return False

    def _compute_part(self, part: Sequence[Work], pending: PendingStep) -> None:
        try:
            drawn, caches = self._chunks(part, pending)
        except Exception as error:
            if self._comm.size > 1:
                raise
            message = f"{type(error).__name__}: {error}"
            pending.failures.extend(RowFailure(row.name, "internal", message) for row, _ in part)
            return
        pending.prefilled.extend(self._comm.submit_prompt(drawn, caches))

    def _chunks(
        self, part: Sequence[Work], pending: PendingStep
    ) -> tuple[list[mx.array], list[mx.array]]:
        """Build one forward pass for these chunks. Return two lists of unevaluated arrays: the
        results (drawn tokens and scores), and all other arrays to evaluate, such as caches."""
        starts = [row.computed for row, _ in part]
        lengths = [chunk.stop - start for (_, chunk), start in zip(part, starts, strict=True)]
        widest = bounded_width(max(lengths)) if self._pads else max(lengths)
        tokens = np.zeros((len(part), widest), dtype=np.int32)
        for index, ((row, chunk), start) in enumerate(zip(part, starts, strict=True)):
            tokens[index, : lengths[index]] = row.spec.tokens[start : chunk.stop]
        if [widest] == lengths:
            caches = part[0][0].caches
        else:
            shape = GroupShape(starts, lengths)
            own = [row.caches for row, _ in part]
            caches = [GroupKV(shape, layer) for layer in zip(*own, strict=True)]
        inputs = mx.array(tokens)
        for row, chunk in part:
            row.computed = chunk.stop
        last = [index for index, (row, _) in enumerate(part) if row.prefilled]
        ends = [lengths[index] - 1 for index in last]
        scored = [
            ScoredChunk(index, row.spec, start, chunk.stop)
            for index, ((row, chunk), start) in enumerate(zip(part, starts, strict=True))
            if row.spec.prompt_logprobs is not None
        ]

        adapters = [row.spec.adapter for row, _ in part]

        def run() -> mx.array:
            """Return the output of the forward pass, which adds its tokens to the caches."""
            with self._adapters.applied(adapters) if any(adapters) else nullcontext():
                return self._model(inputs, cache=caches)

        arrays: list[mx.array] = []
        if scored:
            out = run()
            arrays += self._scores(out, scored, pending)
            logits = out[mx.array(last), mx.array(ends)] if last else out
        elif last:
            logits = self._head.logits(run, last, ends)
        else:
            logits = run()
        further = evaluated(caches)
        if self._hidden.head is not None:
            rows = [row for row, _ in part]
            further += self._hidden.of_prompts(list(zip(rows, starts, lengths, strict=True)))
        if not last:
            return arrays, [*self._comm.must_evaluate(logits), *further]
        return [*self._first_tokens(part, last, logits, pending), *arrays], further

    def _scores(
        self, out: mx.array, chunks: Sequence[ScoredChunk], pending: PendingStep
    ) -> list[mx.array]:
        """Return the arrays to evaluate for the log-probabilities of these chunks' tokens. On a
        follower, this is the output of the forward pass: the follower must take part in the
        exchanges on which the lead's logits depend."""
        if not self._comm.leads:
            return [out]
        scores = score_chunks(out, chunks)
        pending.scored.append(scores)
        return scores.arrays()

    def _first_tokens(
        self, part: Sequence[Work], last: Sequence[int], logits: mx.array, pending: PendingStep
    ) -> list[mx.array]:
        """Draw the first token of the rows at the indices `last`, whose prompts end in this part.
        Return the arrays to evaluate."""
        rows = [part[index][0] for index in last]
        drawn = self._source.draw(rows, logits, pending)
        for index, row in enumerate(rows):
            row.token = drawn.tokens[index : index + 1]
        record(pending.first, drawn, list(enumerate(rows)))
        return drawn.arrays()
