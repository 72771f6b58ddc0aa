"""The interface between scheduling and computing: step plans and step results.

Pure. The package `runner.schedule` decides; an `Engine` computes. The `StepPlan` is the engine's
*only* input after loading. A plan is serialisable and numbered, and every rank that gets the same
plan runs the same operations in the same order. (An embedding model has no steps: its `Embedder`
takes prompts and returns their vectors.)

Order within a step: release and preempt; evict; admit; restore prefixes and apply hits; prefill
groups in order; decode all listed rows; insert prefixes. A row whose last prompt chunk is in this
step's prefill samples its first token in this step and may decode from the next step on. The engine
is kept one step ahead: `issue(n + 1)` comes before `read(n)`. So a row that finishes in n still
runs in n + 1, and its token there is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NewType, Protocol

from bus.models.kv import DiskRun, PrefixDisk
from bus.wire.array_frames import ArrayFrame
from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling

RowId = NewType("RowId", int)
"""Id of a row, which is one choice of one request. A row that resumes gets a new id; ids are never
reused within a generation (an attempt to load the instance)."""
EntryId = NewType("EntryId", int)
"""Id of one kept prefix in the engine's prefix cache."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar that the row's output must match, compiled in advance by `text`: `compiled` is its
    serialised form in the library. Rows with equal `key` share one compilation."""

    key: str
    compiled: str


@dataclass(frozen=True, slots=True)
class RowSpec:
    """Everything that an engine needs to know about a row; sent once, with the plan that admits it.

    `tokens` are the prompt and, after a preemption, the last `made` output tokens. Penalties,
    grammar and the random stream then continue exactly, because a token's random key depends only
    on (`seed`, position). `seed` is always set here. `logprobs` None: not computed; k: of the
    chosen token and of the k likeliest. `prompt_logprobs` k: also of each prompt token, from the
    logits of every position of the row's chunks; the scheduler keeps those chunks small. No token
    of `held_ends` is sampled before the row has `min_tokens` tokens. `adapter` names one of the
    engine's adapters; empty: none. `traced` is the request id if the ranks of a group record spans
    for it. `guessed`: a draft model or an MTP head may guess its tokens.
    """

    row: RowId
    tokens: tuple[TokenId, ...]
    sampling: Sampling
    seed: int
    made: int = 0
    logprobs: int | None = None
    grammar: GrammarSpec | None = None
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    held_ends: frozenset[int] = frozenset()
    adapter: str = ""
    traced: str = ""
    guessed: bool = False


class PrefixHit(ArrayFrame, frozen=True):
    """Start `row` from the first `length` tokens of the kept prefix `entry` (0 < length < len(row
    tokens): at least one token is always computed)."""

    row: RowId
    entry: EntryId
    length: int


class PrefixInsert(ArrayFrame, frozen=True):
    """Keep the KV of the row's first `length` tokens as entry `entry` of the prefix cache; all of
    these tokens are computed by the end of this step."""

    entry: EntryId
    row: RowId
    length: int


@dataclass(frozen=True, slots=True)
class PrefixSave:
    """Write the kept prefix `entry`, which has the tokens of `run`, to disk. If the entry is
    evicted, writing stops."""

    entry: EntryId
    run: DiskRun


@dataclass(frozen=True, slots=True)
class PrefixRestore:
    """Keep the first `length` tokens of a run of KV that was read from disk, as entry `entry`."""

    entry: EntryId
    name: str
    length: int


class PrefillChunk(ArrayFrame, frozen=True):
    """Compute tokens[start:stop] of a row's prompt. Chunks of a row come in order, without gaps."""

    row: RowId
    start: int
    stop: int


PrefillGroup = tuple[PrefillChunk, ...]
"""Chunks that run as one padded batch; the scheduler keeps padding within 25 %."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The work of the engine in one numbered step. An empty tuple means that the step does nothing
    of that kind."""

    step: int
    release: tuple[RowId, ...] = ()
    preempt: tuple[RowId, ...] = ()
    evict: tuple[EntryId, ...] = ()
    admit: tuple[RowSpec, ...] = ()
    hits: tuple[PrefixHit, ...] = ()
    prefill: tuple[PrefillGroup, ...] = ()
    decode: tuple[RowId, ...] = ()
    insert: tuple[PrefixInsert, ...] = ()
    digest: int = 0
    """CRC-32 of all tokens that were read before this plan; followers compare it with their own."""
    forced: tuple[tuple[RowId, TokenId], ...] = ()
    """Tokens that replace the sampled ones, by row. Only the lead has them, because only the lead
    samples."""
    drafts: tuple[tuple[RowId, tuple[TokenId, ...]], ...] = ()
    """Guessed next tokens of some rows in `decode`. The plan does nothing else, and is read before
    the next one. Its result has 1 to len(guessed) + 1 tokens of each row."""
    propose: tuple[tuple[RowId, int], ...] = ()
    """Rows in `decode`, each with the number of tokens that the proposer first guesses for it."""
    save: tuple[PrefixSave, ...] = ()
    restore: tuple[PrefixRestore, ...] = ()
    """Prefixes to write to disk, and prefixes that were read from disk; only without a group."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One token of one row. `logprob` is NaN unless the row requested logprobs. `top` holds (token
    id, logprob), likeliest first."""

    row: RowId
    token: TokenId
    logprob: float = float("nan")
    top: tuple[tuple[TokenId, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of the row's prompt tokens from index `start` on, each with the likeliest
    tokens at its position as (token id, logprob). Token 0 is not predicted, so its log-probability
    is 0 and it has no alternatives.
    """

    row: RowId
    start: int
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[TokenId, float], ...], ...]

    def since(self, start: int) -> PromptScores:
        """Return the scores from token `start` on, which must not precede the first."""
        skipped = start - self.start
        return PromptScores(self.row, start, self.logprobs[skipped:], self.top[skipped:])


@dataclass(frozen=True, slots=True)
class RowFailure:
    """The failure of one row in a step; every other row of the step has its token."""

    row: RowId
    reason: Literal["bad_request", "internal", "memory_pressure"]
    message: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """The guessed next tokens of a row by any proposer that computes; none if it cannot guess. They
    took `steps` passes that settled tokens, and `passes` in all. `peak_bytes`: the most accelerator
    memory in use meanwhile, beyond that in use before."""

    tokens: tuple[TokenId, ...] = ()
    steps: int = 0
    passes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """The output of a step and its wall-clock seconds. Over the steps, prompt scores of a row in
    `scored` come in order and without gaps, through its last prompt token. `implied`: the only text
    that the grammar of the only row allows next. `proposed`: the guesses of the proposer."""

    step: int
    tokens: tuple[SampledToken, ...]
    failures: tuple[RowFailure, ...] = ()
    step_s: float = 0.0
    scored: tuple[PromptScores, ...] = ()
    implied: tuple[TokenId, ...] = ()
    proposed: tuple[tuple[RowId, Proposal], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts about a loaded model, which the scheduler uses to plan steps and memory.

    `kv_bytes_per_token` covers the layers whose KV grows; `kv_bytes_fixed` is the constant part per
    row (rotating windows, recurrent state). `batches_ragged` False: rows of different length cannot
    share a batch, so one row runs at a time. `trims` False: prefixes can be kept and reused only at
    full length, and tokens before a wrong guess are computed again. `verifies`: drafts can be
    verified. `draft_costs` has pairs (columns, cost), ascending, measured at load. A step that
    verifies a draft of one row computes that many columns (tokens of the row), and costs as much as
    that many plain steps. `shared_draft_costs` has such pairs by number of rows, from 2 on, in
    plain steps of as many rows. It is empty if drafts of several rows cannot be verified together,
    or were not measured. Rows may use one of `adapters`; `refused_adapters` says why others cannot
    be applied. Prefixes of at least `disk_tokens` tokens can be written to disk (0: none).
    `weights_bytes` includes adapters and the proposer. The proposer keeps the KV of one row, of
    `draft_kv_bytes_per_token`. One of its tokens costs `draft_token_cost` plain steps, and each
    proposal `draft_block_cost` (both 0: unknown). An MTP head and a block drafter guess at most
    `draft_depth` tokens a step. `no_draft_model`, `no_mtp` and `no_block` say why the proposer is
    none of this kind.
    """

    weights_bytes: int
    context_tokens: int
    vocabulary: int
    kv_bytes_per_token: int
    kv_bytes_fixed: int
    batches_ragged: bool
    trims: bool
    eos_token_ids: frozenset[int]
    memory_limit_bytes: int
    extra: Mapping[str, str | int | float | bool] = field(
        default_factory=dict[str, str | int | float | bool]
    )
    adapters: frozenset[str] = frozenset()
    verifies: bool = False
    draft_costs: tuple[tuple[int, float], ...] = ()
    shared_draft_costs: tuple[tuple[int, tuple[tuple[int, float], ...]], ...] = ()
    disk_tokens: int = 0
    draft_token_cost: float = 0.0
    draft_kv_bytes_per_token: int = 0
    draft_block_cost: float = 0.0
    draft_depth: int = 0
    no_draft_model: str = "the model's card names no draft model"
    no_mtp: str = "the model's card asks for no MTP head"
    no_block: str = "the model's card asks for no block drafter"
    refused_adapters: Mapping[str, str] = field(default_factory=dict[str, str])

    def why_no_adapter(self, name: str) -> str | None:
        """Return why rows cannot use this adapter, as text that follows the model's name in a
        message; None if they can."""
        if name in self.adapters:
            return None
        if (why := self.refused_adapters.get(name)) is not None:
            return f"cannot apply its adapter {name}: {why}"
        there = ", ".join(sorted(self.adapters)) or "none"
        return (
            f"was loaded with these adapters: {there}; reload it to use {name}, which was "
            "added later"
        )


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Memory in bytes: MLX's live memory now, row caches, kept prefixes, the peak, and freed memory
    that MLX keeps for reuse."""

    active_bytes: int
    kv_bytes: int
    prefix_bytes: int
    peak_bytes: int
    cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryLook:
    """The used memory and the limit of a rank, measured after it had read the result of `step`."""

    step: int
    used_bytes: int
    limit_bytes: int

    @property
    def is_over(self) -> bool:
        return self.used_bytes > self.limit_bytes


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of a load. `phase` is one of `reading`, `weights`, `probing`, `ready`. Bytes are
    those of weights in memory, and stay at the total after `weights`."""

    phase: Literal["reading", "weights", "probing", "ready"]
    done_bytes: int
    total_bytes: int


@dataclass(slots=True)
class EngineStatus:
    """Status of an engine, for reports and watchdogs: its thread writes, the main thread reads.

    The engine's thread may write between any two reads. So read a field once into a local name, and
    do not assume that two fields belong to the same instant. Values are frozen and replaced as a
    whole. `steps_begun` is the number of the last step started, `steps_done` that of the last step
    read, `last_step_s` its seconds. `busy_since` (monotonic) is the instant since which the engine
    owes a result; None if it owes none.
    """

    progress: LoadProgress = LoadProgress("reading", 0, 0)
    memory: EngineMemory = EngineMemory(0, 0, 0, 0)
    steps_begun: int = 0
    steps_done: int = 0
    last_step_s: float = 0.0
    busy_since: float | None = None


class NotMade(Exception):
    """The quantised model was not written; `args[0]` says why and what to do."""


class Maker(Protocol):
    """Quantises a model. Both methods are called in one thread."""

    def make(self, report: Callable[[LoadProgress], None], stops: Callable[[], bool]) -> None:
        """Write the model and move it into place, reporting the bytes written. If `stops` returns
        true, stop without a model. Raises NotMade; partial files are deleted first."""
        ...

    def memory(self) -> EngineMemory:
        """Return the engine's current memory use."""
        ...


class StepEngine(Protocol):
    """Computes steps. All calls come from the thread that loaded the model. An error of a single
    row (a grammar's dead end, a sampler that raises) is a `RowFailure`; an exception from any call
    is fatal to the group."""

    facts: EngineFacts

    def read(self) -> StepResult:
        """Wait for the result of the oldest unread step and return it. Call once per step."""
        ...

    def memory(self) -> EngineMemory:
        """Return the bytes in use now; does not wait for the device."""
        ...

    def ease(self) -> None:
        """Free unused memory now, and the unused slots of batches soon. May be called while steps
        are unread."""
        ...

    def rest(self) -> None:
        """Free unused memory; called after a short idle time with no unread step."""
        ...

    def close(self) -> None:
        """Close the engine; no calls follow."""
        ...


class Engine(StepEngine, Protocol):
    """Computes the plans of a scheduler, alone or as the lead of a group. `disk` None: prefixes are
    kept in memory only."""

    @property
    def disk(self) -> PrefixDisk | None:
        """Return the prefixes on disk; None: the disk is not used."""
        ...

    def issue(self, plan: StepPlan) -> None:
        """Start step `plan.step`, which is one more than the last issued step. Returns before the
        step is done, but waits for the last tokens of grammar rows."""
        ...


class FollowingEngine(StepEngine, Protocol):
    """Computes the plans that its lead sends (`runner.group.lockstep`)."""

    @property
    def hears(self) -> bool:
        """Return whether this rank's results contain the sampled tokens, which it then checks by
        digest."""
        ...

    def follow(self, plan: StepPlan, barred: tuple[RowId, ...]) -> None:
        """Start a step without the `barred` rows."""
        ...
