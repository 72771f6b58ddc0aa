"""A row: one choice of one request, from its submission to its only end.

Pure. A row's life is the table `NEXT`; only the scheduler moves it. A preempted row
waits again with the tokens it has made and lives on under a new row id, so results of a
former life can still be told apart and are never lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from bus.wire.errors import FailReason, FinishReason
from bus.wire.ids import RequestId, TokenId
from bus.wire.shares import Sharer
from runner.engine import EntryId, PromptScores, RowId, RowSpec, SampledToken
from runner.schedule.prefix import TokenChain
from runner.text import PreparedRequest, ThinkingCount

RowStatus = Literal["waiting", "prefilling", "decoding", "ended"]
RowSignal = Literal["admit", "prompt_done", "preempt", "end"]

NEXT: Mapping[RowStatus, Mapping[RowSignal, RowStatus]] = {
    "waiting": {"admit": "prefilling", "end": "ended"},
    "prefilling": {"prompt_done": "decoding", "preempt": "waiting", "end": "ended"},
    "decoding": {"preempt": "waiting", "end": "ended"},
    "ended": {},
}


LONG_PROMPT = 256
"""Tokens from which on a prompt is worth keeping before its output is complete."""


class RowKey(NamedTuple):
    """Names a row to everyone but the engine."""

    request_id: RequestId
    choice: int


@dataclass(frozen=True, slots=True)
class RowCost:
    """What a row has taken, for usage. Seconds are wall-clock, of its first life's waits."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class RowStarted:
    """The row was admitted for the first time; `cached_tokens` need not be computed."""

    key: RowKey
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class RowPrefilled:
    """`done` of `total` prompt tokens are in the KV cache."""

    key: RowKey
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class RowScored:
    """The log-probabilities of some prompt tokens: all of them in order, before the first token."""

    key: RowKey
    scores: PromptScores


@dataclass(frozen=True, slots=True)
class RowToken:
    """One token, in order; a stop token included."""

    key: RowKey
    sampled: SampledToken


@dataclass(frozen=True, slots=True)
class RowFinished:
    """The row's only end, if it ended well. `why` says what memory was short, where it was."""

    key: RowKey
    finish: FinishReason
    cost: RowCost
    why: str = ""


@dataclass(frozen=True, slots=True)
class RowFailed:
    """The row's only end, if it did not."""

    key: RowKey
    reason: FailReason
    message: str
    cost: RowCost


RowEvent = RowStarted | RowPrefilled | RowScored | RowToken | RowFinished | RowFailed


@dataclass(slots=True, eq=False)
class Row:
    """A row's state. `length` = prompt + made; `computed` counts tokens with KV, issued steps
    included; `in_flight` counts samples issued but not read; `reserved` is the length that KV
    memory is admitted for, and `computed <= reserved` while it lives in the engine. `sharer` asked
    for it; `gave_way` counts how often it was preempted for another sharer. `scored` counts the
    prompt tokens whose log-probabilities were read, over all its lives. `thinking` counts its
    thinking where that has a budget; `forced` how much of thinking's ending is said already. It
    `returns` if its gateway takes it back before it has begun."""

    key: RowKey
    prepared: PreparedRequest
    seed: int
    prompt: TokenChain
    submitted_at: float
    serial: int
    deadline_at: float | None = None
    status: RowStatus = "waiting"
    row_id: RowId | None = None
    made: list[TokenId] = field(default_factory=list[TokenId])
    life_tokens: int = 0
    computed: int = 0
    in_flight: int = 0
    reserved: int = 0
    held: EntryId | None = None
    cached_tokens: int = 0
    promoted: bool = False
    paused_at: float | None = None
    waiting_since: float = 0.0
    waited_s: float = 0.0
    admitted_at: float | None = None
    first_token_at: float | None = None
    finish: FinishReason | None = None
    kept_output: bool = False
    sharer: Sharer = ()
    returns: bool = False
    entered_at: float = 0.0
    gave_way: int = 0
    scored: int = 0
    thinking: ThinkingCount | None = None
    forced: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Return how many tokens the prompt has."""
        return self.prompt.length

    @property
    def keeps_prompt(self) -> bool:
        """Return whether its prompt is kept as soon as it is computed (for its other choices,
        or because it is long); a short one is kept with the output, at the end, for half the
        copying. One that is scored starts from nothing that was kept, and is not kept."""
        if self.prepared.request.prompt_logprobs is not None:
            return False
        enough = self.prompt.length > self.prompt.block_tokens
        return enough and (len(self.prepared.choices) > 1 or self.prompt.length >= LONG_PROMPT)

    @property
    def length(self) -> int:
        """Return how many tokens there are: the prompt's and those made."""
        return self.prompt.length + len(self.made)

    @property
    def longest(self) -> int:
        """Return the length that the row can never exceed."""
        return self.prompt.length + self.prepared.max_tokens

    @property
    def scores(self) -> bool:
        """Return whether log-probabilities of its prompt are still to be read: a kept prefix has
        none."""
        wanted = self.prepared.request.prompt_logprobs is not None
        return wanted and self.scored < self.prompt.length

    @property
    def rank(self) -> int:
        """Return the priority that counts: a row that has aged goes before every class."""
        return -1 if self.promoted else self.prepared.request.priority

    @property
    def order(self) -> tuple[int, float, int]:
        """Return the key, the smallest to go first: rank, then age."""
        return (self.rank, self.submitted_at, self.serial)

    @property
    def wants_token(self) -> bool:
        """Return whether one more sample may be issued for it."""
        return (
            self.status == "decoding"
            and self.paused_at is None
            and len(self.made) + self.in_flight < self.prepared.max_tokens
        )

    @property
    def must_be_read(self) -> bool:
        """Return whether its next sample cannot be planned before those in flight are read: one of
        them may use up the budget of its thinking, or end it."""
        if self.thinking is None or not self.in_flight or self.forced or not self.wants_token:
            return False
        return self.thinking.may_be_due(self.in_flight)

    def go_on_from(self, made: Sequence[TokenId]) -> None:
        """Take up what the row has made at another runner."""
        limit = self.prepared.limit
        for token in made:
            if limit is not None and self.thinking is not None:
                if self.forced or self.thinking.is_due:
                    self.forced = (self.forced + 1) % len(limit.ending)
                self.thinking.take(token)
            self.made.append(token)

    def next_forced(self) -> TokenId | None:
        """Return what its next sample has to be, as thinking has come to its limit; None where it
        may be anything. Called once for each sample that is planned."""
        limit = self.prepared.limit
        if limit is None or self.thinking is None:
            return None
        if not self.forced and (self.in_flight or not self.thinking.is_due):
            return None
        token = limit.ending[self.forced]
        self.forced = (self.forced + 1) % len(limit.ending)
        return token

    def waits_s(self, now: float) -> float:
        """Return how long it has waited in all for a place; what it does now counts where it
        waits."""
        return self.waited_s + (now - self.waiting_since if self.status == "waiting" else 0.0)

    def move(self, signal: RowSignal) -> None:
        """Go on to the next status. KeyError where `NEXT` has none."""
        self.status = NEXT[self.status][signal]

    def reserve_for(self, headroom: int) -> int:
        """Return the length to admit it for: what it has plus `headroom`, at most its longest."""
        return min(self.longest, self.length + headroom)

    def chain(self) -> TokenChain:
        """Return prompt and made tokens; the prompt's own chain while nothing is made."""
        if not self.made:
            return self.prompt
        chain = self.prompt.copy()
        chain.extend(self.made)
        return chain

    def spec(self, row_id: RowId) -> RowSpec:
        """Return what the engine needs to begin, or to go on with, this row as `row_id`."""
        request = self.prepared.request
        return RowSpec(
            row=row_id,
            tokens=(*self.prepared.tokens, *self.made),
            sampling=request.sampling,
            seed=self.seed,
            made=len(self.made),
            logprobs=request.top_logprobs,
            grammar=self.prepared.grammar,
            prompt_logprobs=request.prompt_logprobs if self.scores else None,
            min_tokens=request.min_tokens or 0,
            held_ends=self.prepared.stop_token_ids if request.min_tokens else frozenset(),
            adapter=request.adapter or "",
            traced=request.request_id if request.trace else "",
        )

    def take_scores(self, scores: PromptScores) -> PromptScores | None:
        """Note the scores of a chunk. Return those that an earlier life did not bring; None where
        it brought all, and where they follow a gap, so that some are missing in the end."""
        stop = scores.start + len(scores.logprobs)
        if not scores.start <= self.scored < stop:
            return None
        new, self.scored = scores.since(self.scored), stop
        return new

    def cost(self, now: float) -> RowCost:
        """Return what the row has taken up to `now`."""
        admitted_at = now if self.admitted_at is None else self.admitted_at
        first_token_at = now if self.first_token_at is None else self.first_token_at
        return RowCost(
            prompt_tokens=self.prompt.length,
            completion_tokens=len(self.made),
            cached_tokens=self.cached_tokens,
            queue_s=admitted_at - self.submitted_at,
            prefill_s=first_token_at - admitted_at,
            decode_s=now - first_token_at,
        )
