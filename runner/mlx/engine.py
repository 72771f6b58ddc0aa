# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: executes step plans. The one way into this package.

Every call is made from the thread that called `load_engine`. A step's work is put on the
device's queue by `issue`, which does not wait for it; the token sampled in one step is the
input of the next without passing through the host. The exception is rows that follow a
grammar: their step's forward is queued first, then their last token awaited, and only the
choice of their next one depends on it.

In a group the lead tells its followers each plan as soon as it knows which rows take part, and
then computes it; a follower computes what it is told by `follow`.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import maybe_set_recommended_wired_limit

from bus.process.memory import give_back, hold
from runner.engine import (
    EngineFacts,
    EngineMemory,
    EntryId,
    LoadProgress,
    RowFailure,
    RowId,
    RowSpec,
    StepPlan,
    StepResult,
)
from runner.group.lockstep import RankContext, RankFacts, SharedPlan
from runner.mlx.forward import Forward
from runner.mlx.kv.prefixes import PrefixStore, copy_of, evaluated
from runner.mlx.model.capabilities import Shape, Trial, measure, try_out
from runner.mlx.model.kernels import KernelCache, Outlook
from runner.mlx.model.last_token_head import NarrowHead
from runner.mlx.model.load import (
    LoadedModel,
    Precision,
    UnloadableModel,
    context_of,
    end_tokens,
    load_weights,
)
from runner.mlx.ranks.comm import Company
from runner.mlx.ranks.layer_probe import Unsplittable
from runner.mlx.ranks.pipeline_stage import Part
from runner.mlx.sampling.grammar_mask import Grammars
from runner.mlx.sampling.pending_step import Outcome, result_of
from runner.mlx.sampling.row import EngineRow, RowTrouble, admitted

STEPS_BETWEEN_CLEARS = 256
STEPS_BETWEEN_LOOKS = 64
_BLOCK_BYTES = 512 << 10

__all__ = ["MlxEngine", "Precision", "UnloadableModel", "load_engine"]


def load_engine(
    path: Path,
    *,
    dtype: Precision = "auto",
    memory_limit_bytes: int,
    context_tokens: int | None = None,
    progress: Callable[[LoadProgress], None] = lambda _: None,
    seat: RankContext | None = None,
) -> MlxEngine:
    """Load the model in `path` into the calling thread. UnloadableModel says why not.

    With a `seat`, load that rank's part and agree with the others; the group has been formed.
    `dtype` "auto" is float32 without Metal and as stored with it. `context_tokens` may
    lower, never raise, what the model was made for.
    """
    company = None if seat is None else Company(seat)
    if company is not None:
        company.greet()
    loaded = load_weights(path, dtype, progress, company)
    progress(LoadProgress("probing", loaded.weights_bytes, loaded.weights_bytes))
    mx.set_memory_limit(memory_limit_bytes)
    maybe_set_recommended_wired_limit()
    try:
        engine = MlxEngine(path, loaded, memory_limit_bytes, context_tokens, company)
    except Exception as error:
        raise UnloadableModel(f"{path.name}: {type(error).__name__}: {error}") from error
    progress(LoadProgress("ready", loaded.weights_bytes, loaded.weights_bytes))
    return engine


class MlxEngine:
    """Computes plans for one loaded model: see `runner.engine.Engine`."""

    def __init__(
        self,
        path: Path,
        loaded: LoadedModel,
        memory_limit_bytes: int,
        context_tokens: int | None,
        company: Company | None = None,
    ) -> None:
        head = NarrowHead(loaded.module)
        shape, trial = _found(loaded, head)
        head.narrows = trial.narrows
        self.facts = EngineFacts(
            model_id=path.name,
            weights_bytes=loaded.weights_bytes,
            context_tokens=context_of(loaded.config, context_tokens),
            vocabulary=shape.vocabulary,
            kv_bytes_per_token=shape.kv_bytes_per_token,
            kv_bytes_fixed=shape.kv_bytes_fixed,
            batches_ragged=trial.batches_ragged,
            trims=shape.trims,
            eos_token_ids=end_tokens(loaded.config),
            memory_limit_bytes=memory_limit_bytes,
            backend="metal" if mx.metal.is_available() else "cpu",
            extra={
                "dtype": loaded.precision,
                "groups_prefill": trial.groups,
                "narrow_head": trial.narrows,
                "plain_kv": all(shape.plain),
            },
        )
        self._company = company
        if company is not None:
            trial = self._agreed(path, company.seat, trial)
        self._grammars = Grammars(
            path, vocabulary=self.facts.vocabulary, eos_token_ids=self.facts.eos_token_ids
        )
        self._forward = Forward(loaded.model, shape, trial, head, company)
        size = 1 if company is None else company.seat.size
        self._kernels = KernelCache(path, loaded.weights_bytes * size)
        self._looks = trial.batches_ragged and trial.slabs
        self._start_tracing()
        self._prefixes = PrefixStore()
        self._rows: dict[RowId, EngineRow] = {}
        self._failed: set[RowId] = set()
        self._pending: deque[Outcome] = deque()
        self._last_done = 0.0
        self._issued = 0
        self._rests = False
        self._read = 0
        self._lost: tuple[RowId, ...] = ()
        mx.clear_cache()

    @property
    def hears(self) -> bool:
        """Whether results hold the tokens that were sampled: not in the middle of a pipeline."""
        return self._company is None or self._company.hears

    def issue(self, plan: StepPlan) -> None:
        """Start a step. Raises only when the device, or another rank, is lost."""
        outcome = Outcome(step=plan.step, issued_at=time.perf_counter())
        for spec in plan.admit:
            self._admit(spec, outcome)
        if self._company is not None:
            barred = (*self._lost, *(failure.row for failure in outcome.failures))
            self._company.seat.tell(SharedPlan(plan, self._read, barred))
            self._company.launch()
        self._open(plan)
        self._compute(plan, outcome)
        self._lost = tuple(failure.row for failure in outcome.failures)

    def follow(self, plan: StepPlan, barred: tuple[RowId, ...]) -> None:
        """Start a step that the lead has told; `barred` rows take no part in it."""
        outcome = Outcome(step=plan.step, issued_at=time.perf_counter())
        for row in barred:
            self._fail(row)
        for spec in plan.admit:
            if spec.row not in barred:
                self._admit(spec, outcome)
        self._open(plan)
        self._compute(plan, outcome)

    def _open(self, plan: StepPlan) -> None:
        self._drop((*plan.release, *plan.preempt))
        for entry in plan.evict:
            self._prefixes.evict(entry)
        for hit in plan.hits:
            if (row := self._rows.get(hit.row)) is not None:
                row.start_from(self._prefixes, hit)

    def _compute(self, plan: StepPlan, outcome: Outcome) -> None:
        for group in plan.prefill:
            chunks = [
                (row, chunk)
                for chunk in group
                if (row := self._named(chunk.row, outcome)) is not None
            ]
            self._forward.prefill(chunks, outcome)
        rows = [row for name in plan.decode if (row := self._named(name, outcome)) is not None]
        if rows:
            self._forward.decode(rows, outcome)
        for insert in plan.insert:
            if (row := self._rows.get(insert.row)) is not None:
                self._keep(insert.entry, row, insert.length)
        for failure in outcome.failures:
            self._fail(failure.row)
        self._pending.append(outcome)
        self._tidy()

    def read(self) -> StepResult:
        """Wait for the oldest step that was issued and not read."""
        outcome = self._pending.popleft()
        if self._company is not None:
            if not self._pending:
                self._company.launch()
            if drawn := [*outcome.first, *outcome.decoded]:
                self._company.settle(drawn[-1].drawn.tokens)
        result, self._last_done = result_of(outcome, self._last_done)
        self._read = result.step
        return result

    def memory(self) -> EngineMemory:
        rows = sum(cache.nbytes for row in self._rows.values() for cache in row.caches)
        return EngineMemory(
            active_bytes=mx.get_active_memory(),
            kv_bytes=rows + self._forward.nbytes,
            prefix_bytes=self._prefixes.nbytes,
            peak_bytes=mx.get_peak_memory(),
        )

    def rest(self) -> None:
        """Give back what is free."""
        self._rests = True
        mx.clear_cache()
        give_back(_come_and_go)

    def close(self) -> None:
        """Give back everything. The engine is of no use afterwards."""
        if self._company is not None:
            self._company.launch()
        mx.synchronize()
        self._pending.clear()
        self._rows.clear()
        self._prefixes.clear()
        self._kernels.close()
        self._forward.close()
        mx.clear_cache()

    def _start_tracing(self) -> None:
        """Now or once the kernels are there."""
        if self._looks and self._traceable and not self._kernels.warm:
            self._kernels.fill()
        self._look()

    @property
    def _traceable(self) -> bool:
        """Sixteen bits on a CPU are bound by arithmetic, not by dispatching it."""
        return mx.metal.is_available() or self.facts.extra["dtype"] == "float32"

    def _look(self) -> None:
        """Trace from here on, once the kernels are there. The ranks of a group look after the
        same steps, and begin when all of them can: in a tensor group the order of exchanges
        follows from the graph, which a trace may order otherwise."""
        if not self._looks:
            return
        kernels = self._least(self._kernels.outlook() if self._traceable else Outlook.NEVER)
        self._looks = kernels == Outlook.SOON
        if kernels == Outlook.WARM and self._least(self._forward.traces()):
            self._forward.trace()

    def _least(self, mine: int) -> int:
        return mine if self._company is None else self._company.least(mine)

    def _agreed(self, path: Path, seat: RankContext, trial: Trial) -> Trial:
        """Settle with the other ranks what all of them go by."""
        facts = self.facts
        agreement = seat.agree(
            RankFacts(
                rank=seat.rank,
                config=hashlib.sha256((path / "config.json").read_bytes()).hexdigest(),
                precision=str(facts.extra["dtype"]),
                weights_bytes=facts.weights_bytes,
                memory_limit_bytes=facts.memory_limit_bytes,
                kv_bytes_per_token=facts.kv_bytes_per_token,
                kv_bytes_fixed=facts.kv_bytes_fixed,
                context_tokens=facts.context_tokens,
                vocabulary=facts.vocabulary,
                batches_ragged=facts.batches_ragged,
                groups=trial.groups,
                slabs=trial.slabs,
            )
        )
        self.facts = agreement.applied(facts)
        return replace(
            trial,
            batches_ragged=agreement.batches_ragged,
            groups=agreement.groups,
            slabs=agreement.slabs,
        )

    def _admit(self, spec: RowSpec, outcome: Outcome) -> None:
        try:
            self._rows[spec.row] = admitted(spec, self.facts, self._grammars, self._forward)
        except RowTrouble as trouble:
            outcome.failures.append(RowFailure(spec.row, trouble.reason, trouble.message))
            self._failed.add(spec.row)

    def _named(self, name: RowId, outcome: Outcome) -> EngineRow | None:
        """The row, or None when it has failed; a row never heard of fails now."""
        if name in self._rows:
            return self._rows[name]
        if name not in self._failed:
            outcome.failures.append(RowFailure(name, "internal", f"row {name} is not admitted"))
            self._failed.add(name)
        return None

    def _keep(self, entry: EntryId, row: EngineRow, length: int) -> None:
        cannot = length > row.held or (length < row.held and not self.facts.trims)
        if cannot or length <= 0:
            return  # A hit on an entry that is not there is computed instead.
        if self._company is not None:
            self._company.launch()
        caches = copy_of(self._forward.caches_of(row), length)
        mx.async_eval(evaluated(caches))
        self._prefixes.keep(entry, caches, length)

    def _fail(self, name: RowId) -> None:
        row = self._rows.pop(name, None)
        if row is not None:
            self._forward.leave([row])
        self._failed.add(name)

    def _drop(self, names: tuple[RowId, ...]) -> None:
        gone = [row for name in names if (row := self._rows.pop(name, None)) is not None]
        self._failed.difference_update(names)
        if gone:
            self._forward.leave(gone)
            if not self._rows:
                mx.clear_cache()

    def _tidy(self) -> None:
        self._issued += 1
        if self._rests:
            self._rests = False
            hold()
        if self._issued % STEPS_BETWEEN_CLEARS == 0:
            mx.clear_cache()
            give_back()
        if self._issued % STEPS_BETWEEN_LOOKS == 0:
            self._look()


def _come_and_go() -> None:
    """Have MLX allocate a block where its arrays are, and free it."""
    mx.eval(mx.zeros(_BLOCK_BYTES, dtype=mx.uint8) + 1)


def _found(loaded: LoadedModel, head: NarrowHead) -> tuple[Shape, Trial]:
    """What the model, or this rank's part of it by itself, can do."""
    model = loaded.model
    if not isinstance(model, Part):
        shape = measure(model)
        return shape, try_out(model, shape, head)
    try:
        with model.rehearsal():
            shape = replace(measure(model), vocabulary=model.vocabulary)
            trial = try_out(model, shape, head)
    except Exception as error:
        family = loaded.config.get("model_type", "the model")
        raise Unsplittable(f"{family} cannot be shared between ranks: {error}") from error
    return shape, trial
