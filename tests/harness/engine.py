"""A real engine without a model: it keeps the seam's promises and checks its caller's.

Each next token is a fixed function of the row's seed and of all tokens before it, so a row's
output does not depend on batching, chunks, prefix hits or preemptions, and whatever breaks that
is seen. KV is the list of tokens themselves; a plan that is illegal raises `IllegalPlan`.
Virtual time: every step costs what `StepCosts` says.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bus.models.kv import PrefixDisk
from bus.wire.ids import TokenId
from runner.engine import (
    EngineFacts,
    EngineMemory,
    EntryId,
    PrefillGroup,
    PromptScores,
    Proposal,
    RowFailure,
    RowId,
    RowSpec,
    SampledToken,
    StepPlan,
    StepResult,
)


class IllegalPlan(AssertionError):
    """The scheduler broke the seam's rules."""


def facts(
    *,
    kv_bytes: int = 1 << 30,
    context_tokens: int = 4096,
    batches_ragged: bool = True,
    trims: bool = True,
    verifies: bool = False,
    draft_costs: tuple[tuple[int, float], ...] = ((33, 4.0),),
    draft_token_cost: float = 0.0,
    draft_depth: int = 0,
    shared_draft_costs: tuple[tuple[int, tuple[tuple[int, float], ...]], ...] = (),
    disk_tokens: int = 0,
) -> EngineFacts:
    """A model of one byte of KV per token, with `kv_bytes` left beside its weights."""
    return EngineFacts(
        weights_bytes=1000,
        context_tokens=context_tokens,
        vocabulary=64,
        kv_bytes_per_token=1,
        kv_bytes_fixed=0,
        batches_ragged=batches_ragged,
        trims=trims,
        eos_token_ids=frozenset({0}),
        memory_limit_bytes=1000 + kv_bytes,
        verifies=verifies,
        draft_costs=draft_costs,
        draft_token_cost=draft_token_cost,
        draft_depth=draft_depth,
        no_draft_model="" if draft_token_cost and not draft_depth else "there is none",
        no_mtp="" if draft_depth else "there is none",
        draft_kv_bytes_per_token=bool(draft_token_cost),
        shared_draft_costs=shared_draft_costs,
        disk_tokens=disk_tokens,
    )


def drafted_tokens(plan: StepPlan) -> int:
    """How many tokens of drafts a step verifies."""
    return sum(len(draft) for _, draft in plan.drafts)


def next_token(seed: int, tokens: Sequence[int], vocabulary: int = 64) -> TokenId:
    """What a row says next: depends on everything before it and on its seed."""
    return TokenId(zlib.crc32(repr((seed, tuple(tokens))).encode()) % vocabulary)


def whole_output(seed: int, prompt: Sequence[int], most: int, stops: frozenset[int]) -> list[int]:
    """What a row says in all, undisturbed."""
    made: list[int] = []
    while len(made) < most and not (made and made[-1] in stops):
        made.append(next_token(seed, [*prompt, *made]))
    return made


def scores_of(spec: RowSpec, start: int, stop: int) -> PromptScores:
    """What the chunk tokens[start:stop] tells of the tokens after each of its own: a number that
    depends on all tokens up to there."""
    prompt = spec.tokens[: len(spec.tokens) - spec.made]
    first, last = (start + 1 if start else 0), min(stop + 1, len(prompt))
    numbers = [
        -zlib.crc32(repr(prompt[: at + 1]).encode()) / 2**32 if at else 0.0
        for at in range(first, last)
    ]
    return PromptScores(spec.row, first, tuple(numbers), tuple(() for _ in numbers))


@dataclass(frozen=True)
class StepCosts:
    """Virtual seconds. `leak` is the part of a step's time that is seen in the step before it, as
    on devices where issuing a step waits for the work that is under way. A chunk costs twice as
    much behind `double_at` tokens."""

    decode_fixed_s: float = 0.010
    decode_row_s: float = 0.001
    prefill_fixed_s: float = 0.004
    prefill_token_s: float = 0.001
    leak: float = 0.0
    column_s: float = 0.001
    double_at: float = float("inf")

    def decode_s(self, rows: int) -> float:
        return self.decode_fixed_s + self.decode_row_s * rows if rows else 0.0

    def prefill_s(self, groups: Sequence[PrefillGroup]) -> float:
        return sum(self._group_s(group) for group in groups)

    def _group_s(self, group: PrefillGroup) -> float:
        depth = max(chunk.start for chunk in group)
        flat_s = self.prefill_fixed_s + self.prefill_token_s * padded_tokens(group)
        return flat_s * (1 + depth / self.double_at)


def padded_tokens(group: PrefillGroup) -> int:
    return len(group) * max(chunk.stop - chunk.start for chunk in group)


@dataclass
class FakeRow:
    spec: RowSpec
    tokens: list[TokenId]
    kv: list[TokenId] = field(default_factory=list)
    failed: bool = False
    """A failed row may be named once more, in the step already issued; it is passed over."""

    @property
    def prompt_tokens(self) -> int:
        """How many of the tokens were given; those after them were made."""
        return len(self.spec.tokens) - self.spec.made


@dataclass
class FakeEngine:
    """Implements `runner.engine.Engine`. `failing` rows (by row id) fail at their next sample."""

    facts: EngineFacts
    costs: StepCosts = field(default_factory=StepCosts)
    failing: set[RowId] = field(default_factory=set)
    rows: dict[RowId, FakeRow] = field(default_factory=dict)
    kept: dict[EntryId, list[TokenId]] = field(default_factory=dict)
    unread: deque[StepResult] = field(default_factory=deque)
    seen: set[RowId] = field(default_factory=set)
    step: int = 0
    digest: int = 0
    digests: deque[int] = field(default_factory=deque)
    computed_tokens: int = 0
    seen_early_s: float = 0.0
    rests: int = 0
    eases: int = 0
    disk: PrefixDisk | None = None
    on_disk: dict[str, list[TokenId]] = field(default_factory=dict)
    """The runs that were read from disk, by name."""
    has_followers: bool = True
    """Plans have a digest of the tokens that were read, which only followers need."""
    wrong_every: int = 5
    """The draft model's guess of every so manieth token of a row is wrong; 0: it has failed."""

    def issue(self, plan: StepPlan) -> None:
        self._require(plan.step == self.step + 1, "steps are numbered without gaps")
        self._require(len(self.unread) < 2, "at most two steps are unread")
        digest = self.digest if self.has_followers else 0
        self._require(plan.digest == digest, "the digest covers exactly what was read")
        self.step = plan.step
        for row_id in (*plan.release, *plan.preempt):
            self._require(row_id in self.rows, f"row {row_id} is known")
            del self.rows[row_id]
        for entry in plan.evict:
            self._require(entry in self.kept, f"entry {entry} is known")
            del self.kept[entry]
        for spec in plan.admit:
            self._admit(spec)
        for restored in plan.restore:
            self.kept[restored.entry] = self.on_disk[restored.name][: restored.length]
        for hit in plan.hits:
            row = self.rows[hit.row]
            kept = self.kept[hit.entry]
            self._require(not row.kv and 0 < hit.length < len(row.tokens), "a hit leaves a token")
            self._require(kept[: hit.length] == row.tokens[: hit.length], "a hit is a prefix")
            self._require(self.facts.trims or hit.length == len(kept), "untrimmed, so whole")
            row.kv = kept[: hit.length]
        self._run(plan)

    def read(self) -> StepResult:
        result = self.unread.popleft()
        self.digest = self.digests.popleft()
        leak = self.costs.leak
        seen_s = result.step_s - self.seen_early_s
        self.seen_early_s = leak * self.unread[0].step_s if self.unread else 0.0
        return replace(result, step_s=seen_s + self.seen_early_s)

    def memory(self) -> EngineMemory:
        kv_bytes = sum(len(row.kv) for row in self.rows.values())
        prefix_bytes = sum(len(kept) for kept in self.kept.values())
        return EngineMemory(kv_bytes + prefix_bytes, kv_bytes, prefix_bytes, 0)

    def ease(self) -> None:
        self.eases += 1

    def rest(self) -> None:
        self.rests += 1

    def close(self) -> None:
        self.rows.clear()

    def choose(self, row: FakeRow) -> TokenId:
        """Return the next token of a row, whose prompt is computed."""
        return next_token(row.spec.seed, row.tokens)

    def propose(self, row: FakeRow, most: int) -> tuple[TokenId, ...]:
        """Return what the draft model guesses after the row's last token."""
        ahead = FakeRow(row.spec, list(row.tokens))
        while self.wrong_every and len(ahead.tokens) < len(row.tokens) + most:
            token = self.choose(ahead)
            is_wrong = len(ahead.tokens) % self.wrong_every == 0
            ahead.tokens.append(TokenId((token + is_wrong) % self.facts.vocabulary))
        return tuple(ahead.tokens[len(row.tokens) :])

    def _admit(self, spec: RowSpec) -> None:
        self._require(spec.row not in self.seen, "row ids are never used again")
        self._require(0 <= spec.made < len(spec.tokens), "made tokens follow a prompt")
        self.seen.add(spec.row)
        self.rows[spec.row] = FakeRow(spec, list(spec.tokens))

    def _run(self, plan: StepPlan) -> None:
        guessed = [(row, self.propose(self.rows[row], most)) for row, most in plan.propose]
        plan = replace(plan, drafts=(*plan.drafts, *guessed))
        if not self.facts.batches_ragged:
            self._require(len(plan.decode) <= 1, "one row at a time")
            self._require(all(len(group) == 1 for group in plan.prefill), "one row at a time")
        done, scored = self._prefill(plan)
        self._decode(plan, done)
        tokens, failures = self._sample(plan, done)
        self._keep(plan)
        widest = max((len(draft) for _, draft in plan.drafts), default=0)
        columns_s = self.costs.column_s * widest * len(plan.decode)
        decode_s = self.costs.decode_s(len(plan.decode)) + columns_s
        prefill_s = self.costs.prefill_s(plan.prefill)
        result = StepResult(
            plan.step,
            tuple(tokens),
            tuple(failures),
            decode_s + prefill_s,
            tuple(scored),
            proposed=tuple(
                (row, Proposal(tokens, len(tokens), len(tokens), 1000)) for row, tokens in guessed
            ),
        )
        digest = self.digests[-1] if self.digests else self.digest
        for sampled in tokens:
            packed = sampled.row.to_bytes(8, "little") + sampled.token.to_bytes(4, "little")
            digest = zlib.crc32(packed, digest)
        self.digests.append(digest)
        self.unread.append(result)

    def _prefill(self, plan: StepPlan) -> tuple[list[RowId], list[PromptScores]]:
        done: list[RowId] = []
        scored: list[PromptScores] = []
        for group in plan.prefill:
            real = sum(chunk.stop - chunk.start for chunk in group)
            self._require(real >= 0.75 * padded_tokens(group), "at most a quarter is padding")
            for chunk in group:
                row = self.rows[chunk.row]
                scores = row.spec.prompt_logprobs is not None
                self._require(chunk.row not in done or scores, "one chunk per row and step")
                self._require(chunk.start == len(row.kv) < chunk.stop, "chunks have no gaps")
                self._require(chunk.stop <= len(row.spec.tokens), "chunks are of the prompt")
                row.kv += row.tokens[chunk.start : chunk.stop]
                self.computed_tokens += chunk.stop - chunk.start
                if chunk.row not in done:
                    done.append(chunk.row)
                if scores:
                    scored.append(scores_of(row.spec, chunk.start, chunk.stop))
        return done, scored

    def _decode(self, plan: StepPlan, done: list[RowId]) -> None:
        self._require(len(set(plan.decode)) == len(plan.decode), "each row decodes once")
        if plan.drafts:
            shares = len(plan.decode) == 1 or bool(self.facts.shared_draft_costs)
            self._require(self.facts.verifies and shares, "drafts of so many rows are verified")
            self._require({row for row, _ in plan.drafts} <= {*plan.decode}, "rows decode")
            self._require(not self.unread, "a draft follows tokens that were read")
            does_more = plan.prefill or plan.admit or plan.forced or plan.insert or plan.release
            self._require(not does_more, "with nothing else")
        for row_id in plan.decode:
            row = self.rows[row_id]
            if row.failed:
                continue
            self._require(row_id not in done, "a row decodes in a later step than its prefill")
            self._require(len(row.kv) == len(row.tokens) - 1, "only finished prompts decode")
            row.kv.append(row.tokens[-1])

    def _sample(
        self, plan: StepPlan, done: list[RowId]
    ) -> tuple[list[SampledToken], list[RowFailure]]:
        tokens: list[SampledToken] = []
        failures: list[RowFailure] = []
        forced, drafts = dict(plan.forced), dict(plan.drafts)
        self._require(forced.keys() <= {*done, *plan.decode}, "what is forced is sampled")
        finished = [row_id for row_id in done if len(self.rows[row_id].kv) == self._life(row_id)]
        for row_id in (*finished, *plan.decode):
            if self.rows[row_id].failed:
                continue
            if row_id in self.failing:
                self.rows[row_id].failed = True
                failures.append(RowFailure(row_id, "internal", "told to fail"))
                continue
            row = self.rows[row_id]
            token = forced.get(row_id) or self.choose(row)
            row.tokens.append(token)
            tokens.append(SampledToken(row_id, token))
            for guess in drafts.get(row_id, ()):
                if guess != token:
                    break
                row.kv.append(token)
                token = self.choose(row)
                row.tokens.append(token)
                tokens.append(SampledToken(row_id, token))
        return tokens, failures

    def _keep(self, plan: StepPlan) -> None:
        for insert in plan.insert:
            row = self.rows[insert.row]
            self._require(insert.entry not in self.kept, "entries are new")
            self._require(0 < insert.length <= len(row.kv), "only what is computed is kept")
            self._require(self.facts.trims or insert.length == len(row.kv), "untrimmed: whole")
            self.kept[insert.entry] = row.kv[: insert.length]

    def _life(self, row_id: RowId) -> int:
        return len(self.rows[row_id].spec.tokens)

    @staticmethod
    def _require(fact: bool, rule: str) -> None:
        if not fact:
            raise IllegalPlan(rule)
