# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: the forwards of a step, of prompts and of decoding rows.

Chunks of a group run as one padded batch if the model's KV allows it, else one after the other.
Where each new shape costs time (`compiles_shapes`), chunks are padded to a power of two.
Decoding rows share microbatches; if a model's rows cannot share one, each runs alone on its own
caches. Sampled tokens stay on the device.

In a group every rank makes the same calls. An error that the other ranks would not notice is raised
and ends the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from bus.wire.ids import TokenId
from runner.engine import PrefillChunk, RowFailure, RowId
from runner.mlx.adapters import AdapterBank
from runner.mlx.kv import GroupKV, GroupShape, evaluated
from runner.mlx.microbatch import Microbatch, microbatch_for, record
from runner.mlx.model.capabilities import (
    Capabilities,
    Shape,
    new_caches,
    refuse_mutual,
    trace_agrees,
    try_out,
)
from runner.mlx.model.compiled_decode import CompiledDecode
from runner.mlx.model.device import bounded_width, compiles_shapes
from runner.mlx.model.draft_trial import DraftTrial, try_drafts
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.model.load import LoadedWeights
from runner.mlx.ranks.comm import Comm
from runner.mlx.ranks.layer_probe import Unsplittable
from runner.mlx.ranks.pipeline_stage import StageModel
from runner.mlx.sampling import (
    DraftModel,
    EngineRow,
    PendingStep,
    ReceivingSource,
    SamplingSource,
    ScoredChunk,
    TokenSource,
    score_chunks,
)

PART_TOKENS = 64
"""Minimum tokens of a part of prompts that a pipeline computes separately; smaller parts are hardly
faster."""

Work = tuple[EngineRow, PrefillChunk]


class Prefill:
    """The forwards of prompts, chunk by chunk, each row on its own caches."""

    def __init__(
        self,
        model: Any,
        head: LastTokenHead,
        source: TokenSource,
        comm: Comm,
        adapters: AdapterBank,
        *,
        groups: bool,
        pads: bool,
    ) -> None:
        """`groups` says whether chunks of several rows can be one padded batch; `pads`, whether
        such a batch, also of one row, is as wide as a power of two."""
        self._model = model
        self._head = head
        self._source = source
        self._comm = comm
        self._adapters = adapters
        self._groups = groups
        self._pads = groups and pads

    def compute(self, group: Sequence[Work], pending: PendingStep) -> None:
        """Start the forwards for chunks of prompts. A row whose last chunk is among them gets its
        first token. A chunk out of order fails its row. An error fails the rows of its forward if
        this rank is alone; in a group it is raised."""
        fit = [work for work in group if self._follows(work, pending)]
        for part in self._parts(fit):
            self._compute_part(part, pending)

    def _parts(self, fit: list[Work]) -> list[list[Work]]:
        """Return the chunks grouped by forward. There are as many forwards as pipeline stages if
        the chunks are large enough, so that the stages work in parallel."""
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
        message = f"chunk {chunk.start}..{chunk.stop} of a row with {row.computed} computed tokens"
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
        """Build one forward of these chunks. Return two lists of unevaluated arrays: results (drawn
        tokens, scores), and the further arrays to evaluate, such as caches."""
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

        def run() -> mx.array:
            """Return the forward's output; its caches advance."""
            with self._adapters.applied([row.spec.adapter for row, _ in part]):
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
        if not last:
            return arrays, [*self._comm.must_evaluate(logits), *evaluated(caches)]
        return [*self._first_tokens(part, last, logits, pending), *arrays], evaluated(caches)

    def _scores(
        self, out: mx.array, chunks: Sequence[ScoredChunk], pending: PendingStep
    ) -> list[mx.array]:
        """Return the arrays to evaluate for the scores of these chunks. A follower returns the
        output of the forward, because the lead's logits need the exchanges of the last layer."""
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


class Forward:
    """Runs the forwards of one model: prefill of prompts, and decoding of rows in microbatches."""

    def __init__(
        self,
        model: Any,
        shape: Shape,
        capabilities: Capabilities,
        head: LastTokenHead,
        comm: Comm,
        adapters: AdapterBank,
    ) -> None:
        self._adapters = adapters
        self._model = model
        self._shape = shape
        self._capabilities = capabilities
        self._comm = comm
        self.draft_model: DraftModel | None = None
        self._compiled: CompiledDecode | None = None
        self._source = self._new_source()
        self.prompts = Prefill(
            model,
            head,
            self._source,
            comm,
            adapters,
            groups=capabilities.groups,
            pads=comm.size == 1 and compiles_shapes(),
        )
        self._microbatches = self._new_microbatches()

    def new_caches(self, reserve: int) -> list[Any]:
        """Return a row's own empty caches, one per layer, with room for `reserve` tokens."""
        return new_caches(self._model, self._shape, reserve)

    def try_drafts(self) -> DraftTrial:
        """Measure what steps with drafts cost and whether they have the bits of plain steps. The
        model must be able to verify drafts."""
        packed = self._capabilities.packs
        return try_drafts(self._model, self._shape, self._compiled, packed=packed)

    def traces(self) -> bool:
        """Return whether a compiled trace of a small batch gives the same results as the plain
        forward; this is tried out."""
        model, capabilities = self._model, self._capabilities
        with model.rehearsal() if isinstance(model, StageModel) else nullcontext():
            return capabilities.batches_ragged and trace_agrees(
                model, self._shape, packed=capabilities.packs
            )

    def trace(self) -> None:
        readers = self._shape.readers(packed=self._capabilities.packs)
        self._compiled = CompiledDecode(self._model, readers)

    def caches_of(self, row: EngineRow) -> list[Any]:
        """Return the row's caches. If the row is in a microbatch, they are copies that are not
        evaluated yet."""
        return self._microbatches[row.microbatch].caches_of(row.name) if row.batched else row.caches

    @property
    def nbytes(self) -> int:
        """Return the KV bytes of all microbatches, spare slots included."""
        return sum(microbatch.batch.nbytes for microbatch in self._microbatches)

    def ease(self) -> None:
        for microbatch in self._microbatches:
            microbatch.batch.ease()

    def close(self) -> None:
        self._compiled = None
        self._microbatches = self._new_microbatches()

    def decode(self, rows: Sequence[EngineRow], pending: PendingStep) -> None:
        """Start a step that gives one token to each row; all have been prefilled."""
        ready = [row for row in rows if self._can_decode(row, pending)]
        if not ready:
            return
        if self._capabilities.batches_ragged:
            self._decode_together(ready, pending)
            return
        for row in ready:
            self._decode_alone(row, pending)

    def verify(
        self,
        rows: Sequence[EngineRow],
        drafts: Mapping[RowId, Sequence[TokenId]],
        wanted: Sequence[tuple[RowId, int]],
        pending: PendingStep,
    ) -> bool:
        """Start a step that gives each row a token and verifies the drafts of some, `wanted` ones
        by the draft model. Unless it returns False, the rows' new tokens must be given to `accept`
        before the next step."""
        if not self._capabilities.verifies:
            why = "this engine cannot verify drafts"
            pending.failures.extend(RowFailure(row.name, "internal", why) for row in rows)
            return False
        ready = [row for row in rows if self._can_decode(row, pending)]
        if wanted and self.draft_model is not None:
            self._microbatches[0].write_back()
            pending.proposed = self.draft_model.proposals(ready, wanted)
            drafts = {**drafts, **dict(pending.proposed)}
        if any(drafts.values()):
            return bool(ready) and self._microbatches[0].verify(ready, drafts, pending)
        self.decode(ready, pending)
        return False

    def accept(self, made: Mapping[RowId, Sequence[TokenId]]) -> None:
        """Keep the KV of verified drafts up to each row's last new token."""
        self._microbatches[0].accept(made)

    def leave(self, rows: Sequence[EngineRow]) -> None:
        """Free the KV of rows, and remove them from their microbatches."""
        inside = [row for row in rows if row.batched]
        for row in rows:
            row.caches = []
            row.batched = False
        for number, microbatch in enumerate(self._microbatches):
            gone = [row for row in inside if row.microbatch == number]
            if gone:
                microbatch.leave(gone)

    def _new_source(self) -> TokenSource:
        if self._comm.leads:
            return SamplingSource(self._shape.vocabulary, self._comm)
        return ReceivingSource(self._comm)

    def _new_microbatches(self) -> list[Microbatch]:
        parts = self._model, self._shape, self._capabilities
        return [
            Microbatch(*parts, self._new_source(), self._comm, self._adapters)
            for _ in range(self._comm.microbatches)
        ]

    def _can_decode(self, row: EngineRow, pending: PendingStep) -> bool:
        if row.prefilled and (row.batched or row.token is not None):
            return True
        message = f"cannot decode: {row.computed} of {len(row.spec.tokens)} tokens are computed"
        pending.failures.append(RowFailure(row.name, "internal", message))
        return False

    def _decode_together(self, rows: Sequence[EngineRow], pending: PendingStep) -> None:
        lengths = [len(microbatch) for microbatch in self._microbatches]
        for row in rows:
            if not row.batched:
                row.microbatch = microbatch_for(lengths)
                lengths[row.microbatch] += 1
        for number, microbatch in enumerate(self._microbatches):
            own = [row for row in rows if row.microbatch == number]
            if own:
                microbatch.step(own, pending, self._compiled)

    def _decode_alone(self, row: EngineRow, pending: PendingStep) -> None:
        assert row.token is not None
        self._comm.settle()
        with self._adapters.applied([row.spec.adapter]):
            logits = self._model(row.token[None], cache=row.caches)[:, -1]
        drawn = self._source.draw([row], logits, pending)
        self._comm.submit(drawn.arrays())
        row.token = drawn.tokens
        record(pending.decoded, drawn, [(0, row)])


def try_model(
    loaded: LoadedWeights,
    head: LastTokenHead,
    adapters: AdapterBank,
    measured: Callable[[Any], Shape],
) -> tuple[Shape, Capabilities]:
    """Return the model's (or this rank's part's) KV layout and capabilities. Refuses adapters that
    cannot be chosen per row."""
    model = loaded.model
    if not isinstance(model, StageModel):
        shape = measured(model)
        refuse_mutual(model, shape, adapters)
        return shape, try_out(model, shape, head)
    try:
        with model.rehearsal():
            shape = replace(measured(model), vocabulary=model.vocabulary)
            refuse_mutual(model, shape, adapters)
            capabilities = try_out(model, shape, head)
    except Exception as error:
        family = loaded.config.get("model_type", "the model")
        raise Unsplittable(f"{family} cannot be split between ranks: {error}") from error
    return shape, capabilities
