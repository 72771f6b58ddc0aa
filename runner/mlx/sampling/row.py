"""Talks to MLX: the state of a row in the engine, and the checks when a row is admitted.

An invalid `RowSpec` raises only `RowTrouble`, so it never harms other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, Protocol

import mlx.core as mx

from bus.wire.ids import TokenId
from runner.engine import EngineFacts, PrefixHit, RowFailure, RowId, RowSpec, StepResult
from runner.mlx.kv import PrefixStore
from runner.mlx.sampling.batch_sampler import RowDraw, start_draw
from runner.mlx.sampling.grammar_mask import GrammarMasks
from runner.mlx.sampling.pending_step import PendingStep
from runner.text import BadGrammar, DeadEnd, RowMatcher


class RowTrouble(Exception):
    """One row fails, for this reason. Other rows are not affected."""

    def __init__(self, reason: Literal["bad_request", "internal"], message: str) -> None:
        super().__init__(message)
        self.reason: Literal["bad_request", "internal"] = reason
        self.message = message


class RowCaches(Protocol):
    """Makes caches for the KV of rows, and frees them."""

    def new_caches(self, reserve: int) -> list[Any]:
        """Return a row's own empty caches, one per layer, with room for `reserve` tokens."""
        ...

    def leave(self, rows: Sequence[EngineRow]) -> None:
        """Remove rows from their decode batches, if they are in one, and free their KV."""
        ...


@dataclass(slots=True, eq=False)
class EngineRow:
    """A row between admission and release.

    While the row is in no decode batch, `caches` are its own and hold the KV of its first
    `computed` tokens, and `token`, (1,), is its last sampled token. If `batched`, the row is in the
    microbatch number `microbatch`, `caches` is empty and `token` is None.

    `unread` says where the last token of a row with a grammar is, (array, index), until its matcher
    has consumed the token; then it is None. `accepted` are the tokens of a verified draft that the
    matcher has not consumed yet.
    """

    spec: RowSpec
    draw: RowDraw
    caches: list[Any]
    matcher: RowMatcher | None = None
    computed: int = 0
    token: mx.array | None = None
    batched: bool = False
    microbatch: int = 0
    unread: tuple[mx.array, int] | None = field(default=None)
    accepted: list[TokenId] = field(default_factory=list[TokenId])

    @property
    def name(self) -> RowId:
        return self.spec.row

    @property
    def prefilled(self) -> bool:
        """Return whether the whole prompt is computed, or will be after the step that is being
        issued."""
        return self.computed >= len(self.spec.tokens)

    @property
    def computed_tokens(self) -> int:
        """Return the number of tokens whose KV is computed, or will be after the step that is being
        issued."""
        return max(self.computed, self.draw.position - 1) if self.prefilled else self.computed

    def start_from(self, prefixes: PrefixStore, hit: PrefixHit) -> None:
        """Begin the row with a copy of the KV of a kept prefix. If that fails, the row computes the
        prefix itself, in its first chunk."""
        if self.computed or not 0 < hit.length < len(self.spec.tokens):
            return
        try:
            caches = prefixes.start(hit.entry, hit.length, len(self.spec.tokens))
        except (KeyError, ValueError):
            return
        self.caches = caches
        self.computed = hit.length

    def permitted(self, drafted: Sequence[TokenId]) -> Sequence[TokenId]:
        """Return the part of a draft before the first token that the row's grammar forbids. The
        row's last token must have been computed. Raises DeadEnd if the grammar cannot continue
        after that token."""
        if self.matcher is None:
            return drafted
        self.read_token()
        return drafted[: self.matcher.permitted(drafted)]

    def implied(self) -> tuple[TokenId, ...]:
        """Return the next tokens of the row if its grammar allows only these tokens; otherwise
        none. The row's last token must have been computed."""
        if self.matcher is None:
            return ()
        try:
            self.read_token()
        except DeadEnd:
            return ()  # the matcher also refuses the next step
        return self.matcher.implied()

    def read_token(self) -> None:
        """If the row has a grammar, wait for its last token, and let the matcher consume it. After
        a verified draft, the matcher consumes the accepted tokens instead. Raises DeadEnd."""
        if self.matcher is None:
            return
        accepted, self.accepted = self.accepted, []
        for token in accepted:
            self.matcher.consume(token)
        if self.unread is None:
            return
        array, index = self.unread
        self.unread = None
        tokens: list[int] = array.tolist()  # pyright: ignore[reportAssignmentType]
        self.matcher.consume(TokenId(tokens[index]))


class AdmittedRows:
    """The rows of an engine by id, and the ids of failed rows that are not released yet."""

    def __init__(self, facts: EngineFacts, grammars: GrammarMasks, caches: RowCaches) -> None:
        self._facts = facts
        self._grammars = grammars
        self._caches = caches
        self._rows: dict[RowId, EngineRow] = {}
        self._failed: set[RowId] = set()

    @property
    def nbytes(self) -> int:
        """Return the KV bytes of all rows that are in no decode batch, for example rows in
        prefill."""
        return sum(cache.nbytes for row in self._rows.values() for cache in row.caches)

    def admit(self, spec: RowSpec, pending: PendingStep) -> None:
        """Admit a row; if that fails, record its failure with the reason in `pending`."""
        try:
            self._rows[spec.row] = admitted(spec, self._facts, self._grammars, self._caches)
        except RowTrouble as trouble:
            pending.failures.append(RowFailure(spec.row, trouble.reason, trouble.message))
            self._failed.add(spec.row)

    def get(self, name: RowId) -> EngineRow | None:
        return self._rows.get(name)

    def named(self, name: RowId, pending: PendingStep) -> EngineRow | None:
        """Return the row with this id, or None if it has failed. For an unknown id, add a failure
        to `pending` and return None."""
        if name in self._rows:
            return self._rows[name]
        if name not in self._failed:
            pending.failures.append(RowFailure(name, "internal", f"row {name} was not admitted"))
            self._failed.add(name)
        return None

    def with_implied(self, result: StepResult) -> StepResult:
        """If the result has tokens of only one row, and this row has a grammar, add the tokens that
        the grammar implies as the next ones. The row must have no unread step."""
        names = {sampled.row for sampled in result.tokens}
        row = self._rows.get(names.pop()) if len(names) == 1 else None
        if row is None or row.matcher is None:
            return result
        return replace(result, implied=row.implied())

    def fail(self, name: RowId) -> None:
        """Drop a failed row but remember its id, because plans may name the row until a plan
        releases it."""
        row = self._rows.pop(name, None)
        if row is not None:
            self._caches.leave([row])
        self._failed.add(name)

    def release(self, names: Sequence[RowId]) -> bool:
        """Drop these rows and free their KV. Return whether this removed the engine's last rows."""
        gone = [row for name in names if (row := self._rows.pop(name, None)) is not None]
        self._failed.difference_update(names)
        if gone:
            self._caches.leave(gone)
        return bool(gone) and not self._rows

    def clear(self) -> None:
        """Drop all rows. The caller frees their KV."""
        self._rows.clear()


def admitted(
    spec: RowSpec, facts: EngineFacts, grammars: GrammarMasks, model: RowCaches
) -> EngineRow:
    """Check `spec`, and return the row, ready for its first chunk. Raises RowTrouble if the row
    cannot be admitted."""
    _check(spec, facts)
    try:
        matcher = None
        if spec.grammar is not None:
            made = spec.tokens[len(spec.tokens) - spec.made :]
            matcher = grammars.start(spec.grammar, made)
        draw = start_draw(
            spec.sampling,
            seed=spec.seed,
            tokens=spec.tokens,
            made=spec.made,
            top=spec.logprobs,
            vocabulary=facts.vocabulary,
        )
        draw.held_ends = spec.held_ends
        draw.held_until = len(spec.tokens) - spec.made + spec.min_tokens
        return EngineRow(spec, draw, model.new_caches(len(spec.tokens)), matcher)
    except (BadGrammar, DeadEnd) as error:
        raise RowTrouble("bad_request", f"grammar: {error}") from error
    except Exception as error:
        raise RowTrouble("internal", f"{type(error).__name__}: {error}") from error


def _check(spec: RowSpec, facts: EngineFacts) -> None:
    if not spec.tokens:
        raise RowTrouble("bad_request", "a row needs at least one token")
    if not 0 <= spec.made <= len(spec.tokens):
        message = f"a row of {len(spec.tokens)} tokens cannot have {spec.made} output tokens"
        raise RowTrouble("internal", message)
    if len(spec.tokens) > facts.context_tokens:
        raise RowTrouble(
            "bad_request",
            f"{len(spec.tokens)} tokens exceed the context of {facts.context_tokens}",
        )
    if spec.adapter and spec.adapter not in facts.adapters:
        raise RowTrouble("bad_request", f"the model has no adapter {spec.adapter!r}")
    if min(spec.tokens) < 0 or max(spec.tokens) >= facts.vocabulary:
        raise RowTrouble("bad_request", f"token ids must be in 0..{facts.vocabulary - 1}")
    if min(spec.logprobs or 0, spec.prompt_logprobs or 0) < 0:
        raise RowTrouble("bad_request", "logprobs must not be negative")
    if any(not 0 <= token < facts.vocabulary for token in spec.held_ends):
        raise RowTrouble("internal", f"end tokens must be in 0..{facts.vocabulary - 1}")
    sampling = spec.sampling
    if any(not 0 <= token < facts.vocabulary for token in sampling.logit_bias):
        raise RowTrouble("bad_request", f"logit_bias ids must be in 0..{facts.vocabulary - 1}")
    numbers = (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.frequency_penalty,
        sampling.presence_penalty,
        sampling.repetition_penalty,
        *sampling.logit_bias.values(),
    )
    if not all(isfinite(number) for number in numbers):
        raise RowTrouble("bad_request", "sampling settings must be finite numbers")
