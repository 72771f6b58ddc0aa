# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: runs the forward passes of a step, for prompts (in `prefill`) and decoding rows.

The prompt chunks of one prefill group run as one padded batch if the model's KV allows it, else one
after the other. Where MLX needs time for each new shape of arrays (`compiles_shapes`), chunks are
padded to a power of two. Decoding rows share microbatches. If the rows of a model cannot share a
batch, each row runs alone with its own caches. Sampled tokens stay on the device.

In a group of ranks, every rank makes the same calls. An error that the other ranks would not notice
is raised and ends the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from bus.wire.ids import TokenId
from runner.engine import RowFailure, RowId
from runner.mlx.adapters import AdapterBank
from runner.mlx.forward.microbatch import Microbatch, microbatch_for, record
from runner.mlx.forward.prefill import Prefill
from runner.mlx.kv import Shape, new_caches
from runner.mlx.model.capabilities import Capabilities, refuse_mutual, trace_agrees, try_out
from runner.mlx.model.compiled_decode import CompiledDecode
from runner.mlx.model.device import compiles_shapes
from runner.mlx.model.draft_trial import DraftTrial, try_drafts
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.model.load import LoadedWeights
from runner.mlx.mtp import HiddenStates
from runner.mlx.ranks.comm import Comm
from runner.mlx.ranks.layer_probe import Unsplittable
from runner.mlx.ranks.pipeline_stage import StageModel
from runner.mlx.sampling import (
    EngineRow,
    HiddenProposer,
    PendingStep,
    Proposer,
    ReceivingSource,
    SamplingSource,
    TokenSource,
)


class Forward:
    """Runs the forward passes of one model: it prefills prompts, and decodes rows in
    microbatches."""

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
        self.proposer: Proposer | None = None
        self._hidden = HiddenStates(head)
        self._compiled: CompiledDecode | None = None
        self._source = source_for(comm, shape.vocabulary)
        self.prompts = Prefill(
            model,
            head,
            self._source,
            comm,
            adapters,
            self._hidden,
            groups=capabilities.groups,
            pads=comm.size == 1 and compiles_shapes(),
        )
        self._microbatches = self._new_microbatches()

    def new_caches(self, reserve: int) -> list[Any]:
        """Return a row's own empty caches, one per layer, with room for `reserve` tokens."""
        return new_caches(self._model, self._shape, reserve)

    def try_drafts(self) -> DraftTrial:
        """Measure what steps with drafts cost, and whether their logits equal those of plain steps
        bit for bit. The model must be able to verify drafts."""
        packed = self._capabilities.packs
        return try_drafts(self._model, self._shape, self._compiled, packed=packed)

    def traces(self) -> bool:
        """Find out by trial, and return, whether a compiled trace of a small batch gives the same
        results as the plain forward pass."""
        model, capabilities = self._model, self._capabilities
        with model.rehearsal() if isinstance(model, StageModel) else nullcontext():
            return capabilities.batches_ragged and trace_agrees(
                model, self._shape, packed=capabilities.packs
            )

    def trace(self) -> None:
        readers = self._shape.readers(packed=self._capabilities.packs)
        self._compiled = CompiledDecode(self._model, readers, self._hidden.tap)

    def use(self, proposer: Proposer) -> None:
        """Let this proposer guess tokens from now on. If it reads hidden states, compiled traces
        are made anew, because they must also return these."""
        self.proposer = proposer
        if isinstance(proposer, HiddenProposer) and proposer.reads_hidden:
            self._hidden.use(proposer)
            if self._compiled is not None:
                self.trace()

    def caches_of(self, row: EngineRow, length: int) -> list[Any]:
        """Return the row's caches, with at least `length` tokens. If the row is in a microbatch,
        they are copies that are not evaluated yet. Raises ValueError if the caches have more tokens
        and cannot be cut."""
        if row.batched:
            return self._microbatches[row.microbatch].caches_of(row, length)
        if length < row.computed_tokens and not self._shape.trims:
            raise ValueError(f"{row.computed_tokens} tokens cannot be cut to {length}")
        return row.caches

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
        """Start a step that samples one token for each row. A row whose prompt is not computed
        fails."""
        ready = [row for row in rows if row.batched or self._can_decode(row, pending)]
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
        """Start a step that samples a token for each row and verifies the drafts of some rows.

        `drafts` are drafts from the plan. `wanted` has pairs (row, number): the proposer first
        guesses up to this number of tokens for the row. If the model's KV cannot be cut and there
        are several rows, all drafts are ignored. Return whether the step verifies drafts; the
        rows' new tokens must then be passed to `accept` before the next step.
        """
        if not self._capabilities.verifies:
            why = "this engine cannot verify drafts"
            pending.failures.extend(RowFailure(row.name, "internal", why) for row in rows)
            return False
        ready = [row for row in rows if self._can_decode(row, pending)]
        if wanted and self.proposer is not None:
            self._microbatches[0].write_back()
            pending.proposed = self.proposer.proposals(ready, wanted)
            guessed = {row: proposal.tokens for row, proposal in pending.proposed}
            drafts = {**drafts, **guessed}
        if any(drafts.values()) and (len(ready) == 1 or self._shape.trims):
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

    def _new_microbatches(self) -> list[Microbatch]:
        parts = self._model, self._shape, self._capabilities
        vocabulary = self._shape.vocabulary
        return [
            Microbatch(
                *parts, source_for(self._comm, vocabulary), self._comm, self._adapters, self._hidden
            )
            for _ in range(self._comm.microbatches)
        ]

    def _can_decode(self, row: EngineRow, pending: PendingStep) -> bool:
        if row.prefilled and (row.batched or row.token is not None):
            return True
        message = f"cannot decode: {row.computed} of {len(row.spec.tokens)} tokens are computed"
        pending.failures.append(RowFailure(row.name, "internal", message))
        return False

    def _decode_together(self, rows: Sequence[EngineRow], pending: PendingStep) -> None:
        if len(self._microbatches) == 1:
            self._microbatches[0].step(rows, pending, self._compiled)
            return
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


def source_for(comm: Comm, vocabulary: int) -> TokenSource:
    """Return the source of this rank's tokens: the lead samples them, a follower receives them."""
    return SamplingSource(vocabulary, comm) if comm.leads else ReceivingSource(comm)


def try_model(
    loaded: LoadedWeights,
    head: LastTokenHead,
    adapters: AdapterBank,
    measured: Callable[[Any], Shape],
) -> tuple[Shape, Capabilities]:
    """Find out by trial the KV layout and the capabilities of the model, or of this rank's part of
    it. `measured` returns the KV layout. If rows with different adapters cannot share a batch,
    all adapters are refused. Raises Unsplittable if the trial of a pipeline stage fails."""
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
