# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: keeps the arrays of a step that was submitted to the device; reads its result."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import mlx.core as mx

from bus.wire.ids import TokenId
from runner.engine import Proposal, RowFailure, RowId, SampledToken, StepResult
from runner.mlx.sampling.batch_sampler import Drawn
from runner.mlx.sampling.drafted import accepted
from runner.mlx.sampling.prompt_scoring import ScoredRows

Proposals = tuple[tuple[RowId, Proposal], ...]
"""The guesses of the proposer: pairs of a row and its proposal."""


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Tokens that were drawn together. Each entry of `rows` is an index in the arrays of `drawn`, a
    row, and how many of the likeliest tokens the row requested. If `drafted` is not empty, all
    entries are consecutive positions of one row, and tokens after the first wrong guess are
    useless. All rows whose drafts were verified in one step share `drawn`."""

    drawn: Drawn
    rows: tuple[tuple[int, RowId, int], ...]
    drafted: tuple[TokenId, ...] = ()


@dataclass(slots=True)
class PendingStep:
    """A step that was submitted and not read yet: the arrays of its results, and the failures that
    are already known.

    `first` are the first tokens of rows whose prompts ended. `decoded` are the tokens of decoding
    rows. `prefilled` are arrays that are ready after the step's prefill, before its decode.
    """

    step: int
    issued_at: float
    first: list[DrawnRows] = field(default_factory=list[DrawnRows])
    decoded: list[DrawnRows] = field(default_factory=list[DrawnRows])
    prefilled: list[mx.array] = field(default_factory=list[mx.array])
    scored: list[ScoredRows] = field(default_factory=list[ScoredRows])
    failures: list[RowFailure] = field(default_factory=list[RowFailure])
    proposed: Proposals = ()


def result_of(pending: PendingStep, last_done: float) -> tuple[StepResult, float]:
    """Wait for the step. Return its result and the time at which it was done.

    `last_done` is that time of the previous step. The step's cost is the time since it was issued
    or since `last_done`, whichever is later.
    """
    began = max(pending.issued_at, last_done)
    mx.eval(pending.prefilled)
    mx.eval([array for rows in pending.decoded for array in rows.drawn.arrays()])
    done = time.perf_counter()
    lost = {failure.row for failure in pending.failures}
    result = StepResult(
        step=pending.step,
        tokens=tuple(
            token
            for drawn in (*pending.first, *pending.decoded)
            for token in (_valid_tokens(drawn) if drawn.drafted else _tokens(drawn))
            if token.row not in lost
        ),
        failures=tuple(pending.failures),
        step_s=max(done - began, 0.0),
        scored=tuple(
            scores
            for scored in pending.scored
            for scores in scored.read()
            if scores.row not in lost
        ),
        proposed=pending.proposed,
    )
    return result, done


def _valid_tokens(drawn_rows: DrawnRows) -> list[SampledToken]:
    """Return the tokens of a draft up to the first wrong guess, and the token after them."""
    tokens = _tokens(drawn_rows)
    return accepted(drawn_rows.drafted, [sampled.token for sampled in tokens], tokens)


def _tokens(drawn_rows: DrawnRows) -> list[SampledToken]:
    drawn = drawn_rows.drawn
    ids: list[int] = drawn.tokens.tolist()  # pyright: ignore[reportAssignmentType]
    if drawn.chosen is None:
        return [SampledToken(row, TokenId(ids[index])) for index, row, _ in drawn_rows.rows]
    chosen: list[float] = drawn.chosen.tolist()  # pyright: ignore[reportAssignmentType]
    place = {slot: at for at, slot in enumerate(drawn.listed)}
    top_ids: list[list[int]] = [[] for _ in chosen]
    top_logprobs: list[list[float]] = [[] for _ in chosen]
    if drawn.top_ids is not None and drawn.top_logprobs is not None:
        top_ids = drawn.top_ids.tolist()  # pyright: ignore[reportAssignmentType]
        top_logprobs = drawn.top_logprobs.tolist()  # pyright: ignore[reportAssignmentType]
    tokens: list[SampledToken] = []
    for index, row, top in drawn_rows.rows:
        at = place.get(index)
        if at is None:
            tokens.append(SampledToken(row, TokenId(ids[index])))
            continue
        likeliest = zip(top_ids[at][:top], top_logprobs[at][:top], strict=True)
        tokens.append(
            SampledToken(
                row,
                TokenId(ids[index]),
                chosen[at],
                tuple((TokenId(token), logprob) for token, logprob in likeliest),
            )
        )
    return tokens
