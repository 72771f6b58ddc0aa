"""The seam between deciding and computing: what a step is told and what it answers.

Pure. `schedule` decides; an `Engine` computes. The `StepPlan` is the engine's *only*
input after loading: it is serialisable, numbered, and the same plan given to every rank
of a group makes every rank do the same operations in the same order. (An embedding model has
no steps: its `Embedder` is given prompts and returns their vectors.)

Order within a step: release and preempt; evict; admit and prefix hits; prefill groups in
order; decode of all rows named; prefix insertions. A row whose last prompt chunk is in this
step's prefill has its first token sampled in this step; it may decode from the next
step on. The engine is kept one step ahead: `issue(n + 1)` comes before `read(n)`, so that a
row found finished in n still runs in n + 1, and what it makes there is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NewType, Protocol

from bus.wire.array_frames import ArrayFrame
from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling

RowId = NewType("RowId", int)
"""One choice of one request, or one resumed life of it; never reused within a generation."""
EntryId = NewType("EntryId", int)
"""One kept prefix in the engine's prefix cache."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """Text that the row's output must match, compiled off the hot path by `text`.

    `compiled` is the grammar in the library's own serialised form; two rows with equal
    `key` share one compilation.
    """

    key: str
    compiled: str


@dataclass(frozen=True, slots=True)
class RowSpec:
    """All that an engine needs to know of a row; sent once, with the plan that admits it.

    `tokens` are the prompt and, when the row resumes after a preemption, the tokens that it
    had already made (`made` of them, at the end): penalties, grammar and the random stream
    continue exactly where they stopped, for the random key of a token depends on
    (`seed`, its position) alone. `seed` is always set here. `logprobs` None: not computed;
    k: the chosen token's and the k likeliest. `prompt_logprobs` k: of each prompt token too, from
    the logits of every position of the row's chunks; the scheduler keeps those chunks small.
    No token of `held_ends` is sampled before the row has made `min_tokens`. `adapter` is the name
    of one of the engine's adapters, whose layers compute the row; empty: the model's alone.
    `traced` is the request's id where the ranks of a group are to note what they do for it when.
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


class PrefixHit(ArrayFrame, frozen=True):
    """Start `row` from the first `length` tokens of the kept prefix `entry`
    (0 < length < len(row tokens): at least one token is always computed)."""

    row: RowId
    entry: EntryId
    length: int


class PrefixInsert(ArrayFrame, frozen=True):
    """Keep the KV of the row's first `length` tokens as `entry` (all of them are computed
    by the end of this step)."""

    entry: EntryId
    row: RowId
    length: int


class PrefillChunk(ArrayFrame, frozen=True):
    """Compute tokens[start:stop] of the row. Chunks of a row come in order, without gaps."""

    row: RowId
    start: int
    stop: int


PrefillGroup = tuple[PrefillChunk, ...]
"""Chunks run as one padded batch; the scheduler keeps padding within 25 %."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One numbered step. Empty tuples mean nothing of that sort."""

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
    """Running CRC-32 of all tokens committed before this plan; followers check it."""
    forced: tuple[tuple[RowId, TokenId], ...] = ()
    """What rows that are sampled in this step say, in the place of what is drawn; known to the lead
    alone, as all of sampling is."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One token of one row. `logprob` is NaN unless the row asked for logprobs; `top` holds
    (token id, logprob), likeliest first."""

    row: RowId
    token: TokenId
    logprob: float = float("nan")
    top: tuple[tuple[TokenId, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptScores:
    """The log-probabilities of the row's prompt tokens from number `start` on, each with the
    likeliest in its place, (token id, logprob); 0 and none for token 0: given, not predicted."""

    row: RowId
    start: int
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[TokenId, float], ...], ...]

    def since(self, start: int) -> PromptScores:
        """Return those from token `start` on; it is not before the first."""
        skipped = start - self.start
        return PromptScores(self.row, start, self.logprobs[skipped:], self.top[skipped:])


@dataclass(frozen=True, slots=True)
class RowFailure:
    """The row alone is lost; every other row of the step has its token."""

    row: RowId
    reason: Literal["bad_request", "internal", "memory_pressure"]
    message: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step made, and its wall-clock seconds, measured by the engine. `scored` are those of
    a row in order, without gaps, up to where its last chunk tells of the token after it."""

    step: int
    tokens: tuple[SampledToken, ...]
    failures: tuple[RowFailure, ...] = ()
    step_s: float = 0.0
    scored: tuple[PromptScores, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The facts of a loaded model, for scheduling and for memory arithmetic.

    `kv_bytes_per_token` covers the layers whose KV grows; `kv_bytes_fixed` is the constant
    part per row (rotating windows, recurrent state). `batches_ragged` False: rows of
    unlike length must not share a batch, the scheduler runs one row at a time.
    `trims` False: prefixes can be kept and reused only whole, at their full length.
    A step with a row that follows a grammar is read before the next one is planned.
    Rows may have one of `adapters`; those in `refused_adapters` lie beside the model and cannot be
    applied, with the reason. `weights_bytes` counts what adapters take.
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
    refused_adapters: Mapping[str, str] = field(default_factory=dict[str, str])

    def why_no_adapter(self, name: str) -> str | None:
        """Return why rows cannot have this adapter, in words to follow the model's name; None where
        they can."""
        if name in self.adapters:
            return None
        if (why := self.refused_adapters.get(name)) is not None:
            return f"does not apply its adapter {name}: {why}"
        there = ", ".join(sorted(self.adapters)) or "none"
        return f"was loaded with the adapters {there}; load it anew for {name}, which came later"


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes now: all of MLX's live memory, row caches, kept prefixes, the peak so far, and what is
    freed and kept for the next array."""

    active_bytes: int
    kv_bytes: int
    prefix_bytes: int
    peak_bytes: int
    cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryLook:
    """What a rank takes, measured when step `step` was the last one read there, and what it may."""

    step: int
    used_bytes: int
    limit_bytes: int

    @property
    def is_over(self) -> bool:
        """Return whether it takes more than it may."""
        return self.used_bytes > self.limit_bytes


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Where a load stands. `phase` is one of `reading`, `weights`, `probing`, `ready`; the
    bytes are of weights as they will lie in memory, and stay full once `weights` is over."""

    phase: Literal["reading", "weights", "probing", "ready"]
    done_bytes: int
    total_bytes: int


@dataclass(slots=True)
class EngineStatus:
    """Where an engine stands, for reports and watchdogs: its thread writes, the main thread reads.

    The engine's thread may write between any two reads: read a field once into a local name, and
    do not take two fields to be of the same instant (`runner.roles.watchdog`). Values are frozen
    and replaced whole.
    `steps_begun` is the number of the last step taken up, `steps_done` that of the last one read,
    `last_step_s` its seconds. `busy_since`
    (monotonic) says since when the engine has owed its next result; None while it owes none.
    """

    progress: LoadProgress = LoadProgress("reading", 0, 0)
    memory: EngineMemory = EngineMemory(0, 0, 0, 0)
    steps_begun: int = 0
    steps_done: int = 0
    last_step_s: float = 0.0
    busy_since: float | None = None


class NotMade(Exception):
    """No model was made; `args[0]` says why, and what to do."""


class Maker(Protocol):
    """What makes a model of another in fewer bits. Both are called in one thread."""

    def make(self, told: Callable[[LoadProgress], None], stops: Callable[[], bool]) -> None:
        """Write the model and put it in its place, telling how many bytes are written; where
        `stops`, leave without one. Raises NotMade; what was begun is gone then."""
        ...

    def memory(self) -> EngineMemory:
        """Return what it takes now."""
        ...


class EmbedderFacts(Protocol):
    """The facts of a loaded embedding model. A vector has `dimensions` numbers unless another count
    is asked for, where it `allows_dimensions`: one of `dimension_choices`, or where
    `any_dimensions` all up to `width`. An input has at most `max_tokens`."""

    @property
    def dimensions(self) -> int:
        """Return how many numbers a vector has."""
        ...

    @property
    def allows_dimensions(self) -> bool:
        """Return whether another count may be asked for."""
        ...

    @property
    def dimension_choices(self) -> tuple[int, ...]:
        """Return which counts may be."""
        ...

    @property
    def any_dimensions(self) -> bool:
        """Return whether all counts up to `width` may be."""
        ...

    @property
    def width(self) -> int:
        """Return how many numbers a vector has at most."""
        ...

    @property
    def max_tokens(self) -> int:
        """Return how many tokens an input may have, those included that the tokenizer adds."""
        ...


class Embedder(Protocol):
    """Computes vectors. Every call is made from the one thread that loaded the model; an exception
    from any of them is fatal."""

    @property
    def facts(self) -> EmbedderFacts:
        """Return the facts of the model."""
        ...

    def embed(self, prompts: Sequence[Sequence[int]], dimensions: int | None) -> list[bytes]:
        """Return the vector of each prompt, in order, as 32-bit floats, the least byte first. It
        does not depend on the others."""
        ...

    def memory(self) -> EngineMemory:
        """Return the bytes in use now; does not wait for the device."""
        ...

    def rest(self) -> None:
        """Give back free memory: there has been nothing to do for a moment."""
        ...

    def close(self) -> None:
        """End the engine; no other call comes after it."""
        ...


class StepEngine(Protocol):
    """Computes steps. Every call is made from the one thread that loaded the model. A row's own
    trouble (a grammar that dead-ends, a sampler that raises) is a `RowFailure`; an exception from
    any call is fatal to the group."""

    facts: EngineFacts

    def read(self) -> StepResult:
        """Return the result of the oldest unread step, waiting for it. Called once for each."""
        ...

    def memory(self) -> EngineMemory:
        """Return the bytes in use now; does not wait for the device."""
        ...

    def ease(self) -> None:
        """Give back what is free, and soon what batches hold beside their rows; steps may be
        unread."""
        ...

    def rest(self) -> None:
        """Give back free memory: there has been nothing to do for a moment, no step is unread."""
        ...

    def close(self) -> None:
        """End the engine; no other call comes after it."""
        ...


class Engine(StepEngine, Protocol):
    """Computes the plans of a scheduler: alone, or as the lead of a group."""

    def issue(self, plan: StepPlan) -> None:
        """Start step `plan.step`, one more than the step issued before it, and return before it is
        done (but wait for the host where its rows need it, such as grammar rows)."""
        ...


class FollowingEngine(StepEngine, Protocol):
    """Computes the plans that its lead tells (`runner.group.lockstep`), as a follower's engine."""

    @property
    def hears(self) -> bool:
        """Return whether results hold the tokens that were sampled, to be checked by digest."""
        ...

    def follow(self, plan: StepPlan, barred: tuple[RowId, ...]) -> None:
        """Start a step in which `barred` rows take no part."""
        ...
