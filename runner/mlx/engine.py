# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: executes step plans with one loaded model. The entry point of this package.

All calls come from the thread that called `load_engine`. `issue` puts a step's work on the device's
queue and does not wait. A sampled token becomes the input of the next step without passing through
the host. Rows with a grammar are the exception: the engine queues their forward pass, waits for
their last token, and then lets the grammar limit the choice of the next token.

In a group, the lead sends each plan to its followers once it knows which rows take part, and then
computes the plan itself. A follower computes the plans that are passed to `follow`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

import mlx.core as mx

from bus.models.kv import KvLimits
from bus.process.memory import give_back, hold
from bus.wire.ids import TokenId
from bus.wire.kv import KvKind
from runner.engine import (
    EngineFacts,
    EngineMemory,
    EntryId,
    LoadProgress,
    RowId,
    StepPlan,
    StepResult,
)
from runner.group.lockstep import RankContext
from runner.library import maybe_set_recommended_wired_limit
from runner.mlx.adapters import AdapterBank
from runner.mlx.forward import Forward, MtpSource, ProposerSource, try_model, with_proposer
from runner.mlx.kv import PrefixStore, RunFiles, copy_of, evaluated
from runner.mlx.model.capabilities import Capabilities, measure
from runner.mlx.model.compiled_decode import TraceStart
from runner.mlx.model.content import kv_keys, rank_facts
from runner.mlx.model.cores import OwnThreads, Threads
from runner.mlx.model.device import on_gpu
from runner.mlx.model.draft_trial import trial_clock
from runner.mlx.model.kernels import KernelCache
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.model.load import (
    LoadedWeights,
    Precision,
    UnloadableModel,
    context_of,
    end_tokens,
    load_bank,
    load_weights,
)
from runner.mlx.ranks.comm import Comm, GroupComm, meet
from runner.mlx.ranks.shard import own_part
from runner.mlx.sampling import (
    AdmittedRows,
    EngineRow,
    GrammarMasks,
    PendingStep,
    peak_memory,
    result_of,
)

STEPS_BETWEEN_CLEARS = 256
STEPS_BETWEEN_LOOKS = 64

__all__ = ["MlxEngine", "Precision", "UnloadableModel", "load_engine"]


def load_engine(
    path: Path,
    *,
    dtype: Precision = "auto",
    memory_limit_bytes: int,
    context_tokens: int | None = None,
    kv: KvKind = "full",
    adapters: Collection[str] | None = None,
    progress: Callable[[LoadProgress], None] = lambda _: None,
    rank_context: RankContext | None = None,
    threads: Threads | None = None,
    drafts: bool = False,
    draft_path: Path | None = None,
    mtp: MtpSource | None = None,
    block: Path | None = None,
    disk: tuple[KvLimits, str] | None = None,
) -> MlxEngine:
    """Load the model in `path` into the calling thread, which then owns the engine. Raises
    UnloadableModel with the reason.

    With a `rank_context`, load only that rank's part, and agree on the features with the other
    ranks; the group has already formed. `dtype` "auto" is float32 on a CPU and as stored on a GPU.
    `context_tokens` may lower the model's own context, not raise it. `kv` is the format of growing
    KV, if the model supports it. `adapters` names the adapters to load; None: all. `threads` are
    the BLAS threads of a CPU. `drafts`: measure what drafts cost. `draft_path` is the folder of a
    draft model, `mtp` the model's MTP head, or `block` the folder of its block drafter; if it
    cannot be used, `facts` say why. `disk` has the limits of prefix files and the model's name.
    """
    comm = Comm()
    if rank_context is None:
        loaded = load_weights(path, dtype, progress)
    else:
        comm = meet(rank_context)
        loaded = load_weights(path, dtype, progress, partial(own_part, comm))
    bank = load_bank(path, loaded, comm, adapters)
    progress(LoadProgress("probing", loaded.weights_bytes, loaded.weights_bytes))
    mx.set_memory_limit(memory_limit_bytes)
    maybe_set_recommended_wired_limit()
    try:
        engine = MlxEngine(
            path, loaded, memory_limit_bytes, context_tokens, comm, bank, threads, kv
        )
        if engine.facts.verifies:
            engine.use_proposer(path, dtype, ProposerSource(draft_path, mtp, block))
        if drafts:
            engine.try_drafts()
        if disk is not None and disk[0].most_bytes and comm.size == 1 and engine.facts.trims:
            engine.use_files(RunFiles(*disk, kv_keys(path, loaded.precision, kv, bank.digests)))
    except Exception as error:
        raise UnloadableModel(f"{path.name}: {type(error).__name__}: {error}") from error
    progress(LoadProgress("ready", loaded.weights_bytes, loaded.weights_bytes))
    return engine


class MlxEngine:
    """Computes step plans with one loaded model. Implements `runner.engine.Engine`."""

    def __init__(
        self,
        path: Path,
        loaded: LoadedWeights,
        memory_limit_bytes: int,
        context_tokens: int | None,
        comm: Comm,
        adapters: AdapterBank,
        threads: Threads | None = None,
        kv: KvKind = "full",
    ) -> None:
        self._head = head = LastTokenHead(loaded.module)
        context_tokens = context_of(loaded.config, context_tokens)
        shape, capabilities = try_model(
            loaded, head, adapters, partial(measure, kind=kv, context_tokens=context_tokens)
        )
        head.narrows = capabilities.narrows
        verifies = capabilities.verifies and comm.size == 1
        self.facts = EngineFacts(
            weights_bytes=loaded.weights_bytes + adapters.nbytes,
            context_tokens=context_tokens,
            vocabulary=shape.vocabulary,
            kv_bytes_per_token=shape.kv_bytes_per_token,
            kv_bytes_fixed=shape.kv_bytes_fixed,
            batches_ragged=capabilities.batches_ragged,
            trims=shape.trims,
            eos_token_ids=end_tokens(loaded.config),
            memory_limit_bytes=memory_limit_bytes,
            extra={
                "dtype": loaded.precision,
                "groups_prefill": capabilities.groups,
                "narrow_head": capabilities.narrows,
                "plain_kv": shape.trims,
                "kv": shape.words(kv),
                "kv_packed": capabilities.packs,
                "verifies_drafts": verifies,
                "on_gpu": on_gpu(),
                "adapters": ", ".join(adapters.names),
                "adapters_refused": "; ".join(f"{n}: {why}" for n, why in adapters.refused.items()),
            },
            adapters=frozenset(adapters.names),
            verifies=verifies,
            refused_adapters=dict(adapters.refused),
        )
        self._comm = comm
        self._threads = threads or OwnThreads()
        if isinstance(comm, GroupComm):
            capabilities = self._agreed(path, comm.context, capabilities, adapters)
        grammars = GrammarMasks(
            path, vocabulary=self.facts.vocabulary, eos_token_ids=self.facts.eos_token_ids
        )
        self._forward = Forward(loaded.model, shape, capabilities, head, comm, adapters)
        self._tracing = TraceStart(
            KernelCache(path, loaded.weights_bytes * comm.size, kv if shape.narrowed else "full"),
            self._forward,
            comm,
            # On a CPU, a trace saves nothing with 16 bits: arithmetic takes all the time.
            pays=mx.metal.is_available() or loaded.precision == "float32",
            allowed=capabilities.batches_ragged and capabilities.slabs,
        )
        self._prefixes = PrefixStore()
        self._rows = AdmittedRows(self.facts, grammars, self._forward)
        self._pending: deque[PendingStep] = deque()
        self._verifies = False
        """Whether the only unread step verifies drafts."""
        self._last_done = 0.0
        self._issued = self._read = 0
        self._rests = False
        self._lost: tuple[RowId, ...] = ()
        mx.clear_cache()

    @property
    def hears(self) -> bool:
        """Return whether results contain sampled tokens. Middle stages of a pipeline get none."""
        return self._comm.hears

    @property
    def disk(self) -> RunFiles | None:
        return self._prefixes.files

    def use_proposer(self, path: Path, dtype: Precision, source: ProposerSource) -> None:
        """Let this proposer guess tokens from now on."""
        self.facts = with_proposer(self._forward, self.facts, path, self._head, dtype, source)

    def use_files(self, files: RunFiles) -> None:
        """From now on, write kept prefixes to these files and read prefixes from them."""
        self._prefixes.files = files
        self.facts = replace(self.facts, disk_tokens=files.least_tokens)

    def issue(self, plan: StepPlan) -> None:
        """Send the plan to the followers and start the step. Waits only for the last tokens of rows
        with a grammar. Raises only if the device or another rank is lost."""
        pending = PendingStep(step=plan.step, issued_at=time.perf_counter())
        for spec in plan.admit:
            self._rows.admit(spec, pending)
        barred = (*self._lost, *(failure.row for failure in pending.failures))
        if self._comm.size > 1:
            self._comm.tell(plan, self._read, barred)
        self._compute(plan, pending)
        self._lost = tuple(failure.row for failure in pending.failures)

    def follow(self, plan: StepPlan, barred: tuple[RowId, ...]) -> None:
        """Start a step that the lead sent, without the `barred` rows, which failed on the lead."""
        pending = PendingStep(step=plan.step, issued_at=time.perf_counter())
        for row in barred:
            self._rows.fail(row)
        for spec in plan.admit:
            if spec.row not in barred:
                self._rows.admit(spec, pending)
        self._compute(plan, pending)

    def read(self) -> StepResult:
        """Wait for the oldest unread step. Return its result, without tokens if not `hears`."""
        pending = self._pending.popleft()
        if self._comm.size > 1 and not self._pending:
            self._comm.flush()
        if self._comm.size > 1 and (drawn := [*pending.first, *pending.decoded]):
            self._comm.await_tokens(drawn[-1].drawn.tokens)
        result, self._last_done = result_of(pending, self._last_done)
        if (draft := self._forward.proposer) is not None:
            draft.take(result.tokens)
            self.facts = draft.noted(self.facts)
        if self._verifies:
            self._accept(result)
        if self.facts.verifies and not self._pending:
            result = self._rows.with_implied(result)
        self._read = result.step
        return result

    def try_drafts(self) -> None:
        """If the engine can verify drafts, measure what they cost, and add that to `facts`."""
        if self.facts.verifies:
            trial = self._forward.try_drafts()
            self.facts = trial.applied(self.facts)
            if (draft := self._forward.proposer) is not None:
                self.facts = draft.measured(self.facts, trial_clock(), trial.plain_s)
            mx.clear_cache()

    def memory(self) -> EngineMemory:
        """Return the bytes in use now: the KV of rows and of prefixes, and all memory of MLX."""
        return EngineMemory(
            active_bytes=mx.get_active_memory(),
            kv_bytes=self._rows.nbytes + self._forward.nbytes,
            prefix_bytes=self._prefixes.nbytes,
            peak_bytes=peak_memory(self._forward.proposer),
            cache_bytes=mx.get_cache_memory(),
        )

    def ease(self) -> None:
        """Free unused memory. Decode batches drop their spare slots in a later step."""
        self._forward.ease()
        mx.clear_cache()
        give_back()

    def rest(self) -> None:
        """Free unused memory, because there is no work. The next step ends this rest."""
        self._rests = True
        self._prefixes.hand_over(self._read)
        self._threads.rest()
        mx.clear_cache()
        give_back(_come_and_go)

    def close(self) -> None:
        """Free everything; the engine cannot be used afterwards."""
        self._comm.flush()
        mx.synchronize()
        self._pending.clear()
        self._rows.clear()
        self._prefixes.close()
        self._tracing.close()
        self._forward.close()
        mx.clear_cache()

    def _compute(self, plan: StepPlan, pending: PendingStep) -> None:
        self._threads.work()
        self._prefixes.hand_over(self._read)
        self._open(plan)
        for group in plan.prefill:
            chunks = [
                (row, chunk)
                for chunk in group
                if (row := self._rows.named(chunk.row, pending)) is not None
            ]
            self._forward.prompts.compute(chunks, pending)
        rows = [row for name in plan.decode if (row := self._rows.named(name, pending)) is not None]
        if rows and (plan.drafts or plan.propose) and not self._pending:
            # else the rows' last tokens are unknown
            self._verifies = self._forward.verify(rows, dict(plan.drafts), plan.propose, pending)
        elif rows:
            self._forward.decode(rows, pending)
        for insert in plan.insert:
            if (row := self._rows.get(insert.row)) is not None:
                self._keep(insert.entry, row, insert.length)
        if plan.save:
            self._comm.submit(self._prefixes.save(plan.step, plan.save))
        for failure in pending.failures:
            self._rows.fail(failure.row)
        self._pending.append(pending)
        self._tidy()

    def _accept(self, result: StepResult) -> None:
        """Keep the KV of the accepted part of each draft. A failed row has no tokens."""
        self._verifies = False
        made: dict[RowId, list[TokenId]] = {}
        for sampled in result.tokens:
            made.setdefault(sampled.row, []).append(sampled.token)
        self._forward.accept(made)

    def _open(self, plan: StepPlan) -> None:
        if self._forward.proposer is not None:
            self._forward.proposer.forget((*plan.release, *plan.preempt))
        if self._rows.release((*plan.release, *plan.preempt)):
            mx.clear_cache()
        for entry in plan.evict:
            self._prefixes.evict(entry)
        for restored in plan.restore:
            self._prefixes.restore(restored, self._forward.new_caches(0))
        for hit in plan.hits:
            if (row := self._rows.get(hit.row)) is not None:
                row.start_from(self._prefixes, hit)
        for name, token in plan.forced:
            if (row := self._rows.get(name)) is not None:
                row.draw.forced = token

    def _keep(self, entry: EntryId, row: EngineRow, length: int) -> None:
        excess = length - row.computed_tokens
        cannot = excess > 0 or (excess < 0 and not (self.facts.trims or self.facts.verifies))
        if cannot or length <= 0:
            return  # Rows that should begin with this entry compute its tokens instead.
        self._comm.flush()
        try:
            held = self._forward.caches_of(row, length)
        except ValueError:
            return  # The layers cannot take back this many tokens.
        caches = copy_of(held, length)
        self._comm.submit(evaluated(caches))
        self._prefixes.keep(entry, caches, length)

    def _agreed(
        self, path: Path, context: RankContext, capabilities: Capabilities, adapters: AdapterBank
    ) -> Capabilities:
        """Compare facts with the other ranks; return the capabilities that all ranks share."""
        facts = self.facts
        agreement = context.agree(rank_facts(path, context.rank, facts, capabilities, adapters))
        self.facts = agreement.applied(facts)
        return replace(
            capabilities,
            batches_ragged=agreement.batches_ragged,
            groups=agreement.groups,
            slabs=agreement.slabs,
        )

    def _tidy(self) -> None:
        self._issued += 1
        if self._rests:
            self._rests = False
            hold()
        if self._issued % STEPS_BETWEEN_CLEARS == 0:
            mx.clear_cache()
            give_back()
        if self._issued % STEPS_BETWEEN_LOOKS == 0:
            self._tracing.look()


def _come_and_go() -> None:
    """Allocate and free a block of arrays, so that glibc returns free memory (`give_back`)."""
    mx.eval(mx.zeros(512 << 10, dtype=mx.uint8) + 1)
