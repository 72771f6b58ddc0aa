"""A row: one choice of one request, from submission to its end.

Pure. The table `NEXT` lists the states of a row; only the scheduler changes them. A preempted row
waits again with its tokens and resumes under a new row id, so that late results of its former id
can be recognised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from bus.wire.errors import FailReason, FinishReason
from bus.wire.ids import RequestId, TokenId
from bus.wire.shares import Sharer
from runner.engine import EntryId, PromptScores, RowId, RowSpec, SampledToken
from runner.schedule.drafting import NO_DRAFTS, DraftCounts, DraftRules, DraftTurns
from runner.schedule.prefixes import TokenChain
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
"""The KV of prompts with at least this many tokens is kept as a prefix before their output is
complete."""


class RowKey(NamedTuple):
    """Identifies a row by its request and its choice. Outside the engine a row is known by this
    key."""

    request_id: RequestId
    choice: int


@dataclass(frozen=True, slots=True)
class RowCost:
    """The cost of a row, for the usage of its request. Seconds are wall-clock time; `queue_s` is
    the wait before the row's first admission."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    drafts: DraftCounts = NO_DRAFTS


@dataclass(frozen=True, slots=True)
class RowStarted:
    """The row was admitted to the engine for the first time; its first `cached_tokens` tokens come
    from a kept prefix."""

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
    """The log-probabilities of some prompt tokens. All of them come in order, before the row's
    first output token."""

    key: RowKey
    scores: PromptScores


@dataclass(frozen=True, slots=True)
class RowToken:
    """One output token of the row; they come in order, and a stop token is one of them."""

    key: RowKey
    sampled: SampledToken


@dataclass(frozen=True, slots=True)
class RowFinished:
    """The row ended normally. `why` is set if it ended early because memory was short."""

    key: RowKey
    finish: FinishReason
    cost: RowCost
    why: str = ""


@dataclass(frozen=True, slots=True)
class RowFailed:
    """The row ended with an error."""

    key: RowKey
    reason: FailReason
    message: str
    cost: RowCost


RowEvent = RowStarted | RowPrefilled | RowScored | RowToken | RowFinished | RowFailed


@dataclass(slots=True, eq=False)
class Row:
    """The state of a row. `length` = prompt + made. `computed` counts tokens with KV, issued steps
    included; `in_flight` counts samples issued but not read. KV memory is admitted for `reserved`
    tokens; `computed <= reserved` while it is in the engine. `sharer` is the requester; `gave_way`
    counts preemptions for other requesters. `scored` counts the prompt tokens with
    log-probabilities read, over all admissions of the row. `thinking` counts thinking tokens
    against their budget; `forced` counts the tokens of the thinking end mark already emitted.
    `returns`: its gateway accepts the request back as long as it has not begun. `rules` say how it
    is drafted. Beside a row that is not drafted no other row is. `drafts` exists once the row has
    decoded alone. A suspect is on trial until it has made `trial_ends` tokens."""

    key: RowKey
    prepared: PreparedRequest
    seed: int
    prompt: TokenChain
    submitted_at: float
    serial: int
    rules: DraftRules
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
    drafts: DraftTurns | None = None
    draft_counts: DraftCounts = NO_DRAFTS
    trial_ends: int = 0

    @property
    def is_on_trial(self) -> bool:
        """Return whether the row may still kill the runner, as it perhaps did before."""
        return len(self.made) < self.trial_ends and self.paused_at is None

    @property
    def keeps_prompt(self) -> bool:
        """Return whether the prompt's KV is kept as a prefix as soon as it is computed, because
        other choices need it or because it is long. A short prompt is kept with its output, at half
        the copying."""
        if not self.prepared.may_be_kept:
            return False
        enough = self.prompt.length > self.prompt.block_tokens
        return enough and (len(self.prepared.choices) > 1 or self.prompt.length >= LONG_PROMPT)

    @property
    def length(self) -> int:
        return self.prompt.length + len(self.made)

    @property
    def longest(self) -> int:
        """Return the maximum length of the row in tokens: its prompt and the longest permitted
        output."""
        return self.prompt.length + self.prepared.max_tokens

    @property
    def scores(self) -> bool:
        """Return whether log-probabilities of the row's prompt are still needed. A kept prefix has
        no log-probabilities."""
        wanted = self.prepared.request.prompt_logprobs is not None
        return wanted and self.scored < self.prompt.length

    @property
    def rank(self) -> int:
        """Return the effective priority, smallest first: a row that has waited so long that it is
        promoted precedes every priority."""
        return -1 if self.promoted else self.prepared.request.priority

    @property
    def order(self) -> tuple[int, float, int]:
        """Return the sort key, smallest first: effective priority, then age."""
        return (self.rank, self.submitted_at, self.serial)

    @property
    def wants_token(self) -> bool:
        """Return whether one more token of the row may be sampled."""
        return (
            self.status == "decoding"
            and self.paused_at is None
            and len(self.made) + self.in_flight < self.prepared.max_tokens
        )

    @property
    def must_be_read(self) -> bool:
        """Return whether samples in flight must be read before the row's next sample is planned:
        one of them may end its thinking or use up the thinking budget."""
        if self.thinking is None or not self.in_flight or self.forced or not self.wants_token:
            return False
        return self.thinking.may_be_due(self.in_flight)

    def go_on_from(self, made: Sequence[TokenId]) -> None:
        """Add the tokens that another runner has already generated; this row continues after
        them."""
        limit = self.prepared.limit
        for token in made:
            if limit is not None and self.thinking is not None:
                if self.forced or self.thinking.is_due:
                    self.forced = (self.forced + 1) % len(limit.ending)
                self.thinking.take(token)
            self.made.append(token)

    def next_forced(self) -> TokenId | None:
        """Return the forced next token if thinking reached its limit; None otherwise. Call once per
        planned sample."""
        limit = self.prepared.limit
        if limit is None or self.thinking is None:
            return None
        if not self.forced and (self.in_flight or not self.thinking.is_due):
            return None
        token = limit.ending[self.forced]
        self.forced = (self.forced + 1) % len(limit.ending)
        return token

    def waits_s(self, now: float) -> float:
        """Return the row's total waiting time in seconds, including a current wait."""
        return self.waited_s + (now - self.waiting_since if self.status == "waiting" else 0.0)

    def move(self, signal: RowSignal) -> None:
        """Move to the state that follows `signal`. Raises KeyError if `NEXT` does not allow the
        signal now."""
        self.status = NEXT[self.status][signal]

    def reserve_for(self, headroom: int) -> int:
        """Return the length in tokens for which to reserve KV: the current one plus `headroom`, at
        most the longest."""
        return min(self.longest, self.length + headroom)

    def chain(self) -> TokenChain:
        """Return the tokens of prompt and output with their block hashes; the prompt's own chain if
        there is no output."""
        if not self.made:
            return self.prompt
        chain = self.prompt.copy()
        chain.extend(self.made)
        return chain

    def spec(self, row_id: RowId, *, guessed: bool) -> RowSpec:
        """Return the engine's spec to start or resume this row as `row_id`. `guessed`: a draft
        model or an MTP head may guess its tokens."""
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
            guessed=guessed,
        )

    def take_scores(self, scores: PromptScores) -> PromptScores | None:
        """Record the scores of a chunk. Return the new ones; None if they were already returned
        before a preemption, or if they follow a gap."""
        stop = scores.start + len(scores.logprobs)
        if not scores.start <= self.scored < stop:
            return None
        new, self.scored = scores.since(self.scored), stop
        return new

    def cost(self, now: float) -> RowCost:
        admitted_at = now if self.admitted_at is None else self.admitted_at
        first_token_at = now if self.first_token_at is None else self.first_token_at
        return RowCost(
            prompt_tokens=self.prompt.length,
            completion_tokens=len(self.made),
            cached_tokens=self.cached_tokens,
            queue_s=admitted_at - self.submitted_at,
            prefill_s=first_token_at - admitted_at,
            decode_s=now - first_token_at,
            drafts=self.draft_counts,
        )
